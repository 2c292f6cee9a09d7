package org.lunarsan.iscsi.connection;

/**
 * Destination of the data segment of the current PDU, set by {@link InitiatorConnection#onHeader}.
 *
 * <p>Threads: the reader's; one object is enough.
 */
public final class Receive {
    private Destination destination = Destination.NOTHING;
    private Command command;
    private int offsetBytes;

    /** Kinds of destination. */
    public enum Destination {
        /** There is no data segment: the PDU has been processed. */
        NOTHING,
        /** The machine itself, by {@link InitiatorConnection#onPayload}: sense, text, echo. */
        CONTROL,
        /** The data-in range of {@link Receive#command}, at {@link Receive#offsetBytes}. */
        COMMAND,
        /** None: read and discard the data, then call {@link InitiatorConnection#onPayload}. */
        DISCARD,
        /** The connection is closed: read no more. */
        CLOSED
    }

    /** Creates an object without a destination. */
    public Receive() {
    }

    void set(Destination where) {
        destination = where;
        command = null;
        offsetBytes = 0;
    }

    void set(Command whose, int offset) {
        destination = Destination.COMMAND;
        command = whose;
        offsetBytes = offset;
    }

    /**
     * The kind of destination.
     *
     * @return the place
     */
    public Destination destination() {
        return destination;
    }

    /**
     * The command that owns the data. It does not complete before
     * {@link InitiatorConnection#onPayload}.
     *
     * @return the command, for {@link Destination#COMMAND}
     */
    public Command command() {
        return command;
    }

    /**
     * Offset of the segment in the data-in range, which contains it as a whole.
     *
     * @return bytes from {@link Command#dataInAt}
     */
    public int offsetBytes() {
        return offsetBytes;
    }
}

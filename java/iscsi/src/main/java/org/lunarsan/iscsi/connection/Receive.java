package org.lunarsan.iscsi.connection;

/**
 * Where the data segment of the PDU in hand goes, as {@link InitiatorConnection#onHeader} says.
 *
 * <p>Threads: the reader's; one is enough.
 */
public final class Receive {
    private Place place = Place.NOTHING;
    private Command command;
    private int offsetBytes;

    /** The places. */
    public enum Place {
        /** There is no data segment: the PDU is dealt with. */
        NOTHING,
        /** To the machine itself, by {@link InitiatorConnection#onPayload}: sense, text, echo. */
        CONTROL,
        /** Into the data-in range of {@link Receive#command}, at {@link Receive#offsetBytes}. */
        COMMAND,
        /** Nowhere: read and forget, then {@link InitiatorConnection#onPayload}. */
        DISCARD,
        /** The connection is closed: read no more. */
        CLOSED
    }

    /** Nothing. */
    public Receive() {
    }

    void set(Place where) {
        place = where;
        command = null;
        offsetBytes = 0;
    }

    void set(Command whose, int offset) {
        place = Place.COMMAND;
        command = whose;
        offsetBytes = offset;
    }

    /**
     * Where it goes.
     *
     * @return the place
     */
    public Place place() {
        return place;
    }

    /**
     * Whose data it is. The command does not come back before
     * {@link InitiatorConnection#onPayload}.
     *
     * @return the command, for {@link Place#COMMAND}
     */
    public Command command() {
        return command;
    }

    /**
     * Where in the data-in range the segment begins; it lies inside the range as a whole.
     *
     * @return bytes from {@link Command#dataInAt}
     */
    public int offsetBytes() {
        return offsetBytes;
    }
}

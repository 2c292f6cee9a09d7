package org.lunarsan.iscsi.pdu;

/**
 * Kinds of Asynchronous Messages. RFC 7143 §11.9.1.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class AsyncEvent {
    /** Sense data of a unit. */
    public static final int SCSI_EVENT = 0x00;

    /** The initiator is to log out. */
    public static final int LOGOUT_REQUESTED = 0x01;

    /** The connection will be dropped. */
    public static final int CONNECTION_WILL_DROP = 0x02;

    /** All connections will be dropped. */
    public static final int SESSION_WILL_DROP = 0x03;

    /** Parameters have to be negotiated again. */
    public static final int RENEGOTIATE = 0x04;

    /** The tasks of a unit are being terminated. */
    public static final int TASKS_TERMINATED = 0x05;

    /** A vendor's event. */
    public static final int VENDOR = 0xff;

    private AsyncEvent() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case SCSI_EVENT -> "SCSI_EVENT";
            case LOGOUT_REQUESTED -> "LOGOUT_REQUESTED";
            case CONNECTION_WILL_DROP -> "CONNECTION_WILL_DROP";
            case SESSION_WILL_DROP -> "SESSION_WILL_DROP";
            case RENEGOTIATE -> "RENEGOTIATE";
            case TASKS_TERMINATED -> "TASKS_TERMINATED";
            case VENDOR -> "VENDOR";
            default -> "AsyncEvent(0x%x)".formatted(value);
        };
    }
}

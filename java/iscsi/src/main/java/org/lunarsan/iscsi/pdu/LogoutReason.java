package org.lunarsan.iscsi.pdu;

/**
 * Reason of a logout: the object to be closed. RFC 7143 §11.14.1.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class LogoutReason {
    /** The session. */
    public static final int CLOSE_SESSION = 0x00;

    /** A connection. */
    public static final int CLOSE_CONNECTION = 0x01;

    /** A connection, for recovery. */
    public static final int REMOVE_FOR_RECOVERY = 0x02;

    private LogoutReason() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case CLOSE_SESSION -> "CLOSE_SESSION";
            case CLOSE_CONNECTION -> "CLOSE_CONNECTION";
            case REMOVE_FOR_RECOVERY -> "REMOVE_FOR_RECOVERY";
            default -> "LogoutReason(0x%x)".formatted(value);
        };
    }
}

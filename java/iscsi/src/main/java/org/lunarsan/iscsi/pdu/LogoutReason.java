package org.lunarsan.iscsi.pdu;

/**
 * What is to be closed. RFC 7143 §11.14.1.
 *
 * <p>Numbers from the wire stay numbers: any value decodes, what it means is judged by the machine.
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
     * The name of a number, for messages.
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

package org.lunarsan.iscsi.pdu;

/**
 * Result of a logout. RFC 7143 §11.15.1.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class LogoutResult {
    /** Closed. */
    public static final int CLOSED = 0x00;

    /** There is no such connection. */
    public static final int CID_NOT_FOUND = 0x01;

    /** Connection recovery is not supported. */
    public static final int RECOVERY_NOT_SUPPORTED = 0x02;

    /** The cleanup failed. */
    public static final int CLEANUP_FAILED = 0x03;

    private LogoutResult() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case CLOSED -> "CLOSED";
            case CID_NOT_FOUND -> "CID_NOT_FOUND";
            case RECOVERY_NOT_SUPPORTED -> "RECOVERY_NOT_SUPPORTED";
            case CLEANUP_FAILED -> "CLEANUP_FAILED";
            default -> "LogoutResult(0x%x)".formatted(value);
        };
    }
}

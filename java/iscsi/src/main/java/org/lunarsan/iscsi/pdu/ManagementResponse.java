package org.lunarsan.iscsi.pdu;

/**
 * Result of a task management function. RFC 7143 §11.6.1, RFC 7144 §6.4.2.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class ManagementResponse {
    /** Function complete. */
    public static final int FUNCTION_COMPLETE = 0x00;

    /** Task does not exist. */
    public static final int TASK_DOES_NOT_EXIST = 0x01;

    /** LUN does not exist. */
    public static final int LUN_DOES_NOT_EXIST = 0x02;

    /** Task still allegiant. */
    public static final int TASK_STILL_ALLEGIANT = 0x03;

    /** Reassignment not supported. */
    public static final int REASSIGNMENT_NOT_SUPPORTED = 0x04;

    /** Function not supported. */
    public static final int FUNCTION_NOT_SUPPORTED = 0x05;

    /** Authorization failed. */
    public static final int AUTHORIZATION_FAILED = 0x06;

    /** Function succeeded. */
    public static final int FUNCTION_SUCCEEDED = 0x07;

    /** Function rejected. */
    public static final int FUNCTION_REJECTED = 0xff;

    private ManagementResponse() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case FUNCTION_COMPLETE -> "FUNCTION_COMPLETE";
            case TASK_DOES_NOT_EXIST -> "TASK_DOES_NOT_EXIST";
            case LUN_DOES_NOT_EXIST -> "LUN_DOES_NOT_EXIST";
            case TASK_STILL_ALLEGIANT -> "TASK_STILL_ALLEGIANT";
            case REASSIGNMENT_NOT_SUPPORTED -> "REASSIGNMENT_NOT_SUPPORTED";
            case FUNCTION_NOT_SUPPORTED -> "FUNCTION_NOT_SUPPORTED";
            case AUTHORIZATION_FAILED -> "AUTHORIZATION_FAILED";
            case FUNCTION_SUCCEEDED -> "FUNCTION_SUCCEEDED";
            case FUNCTION_REJECTED -> "FUNCTION_REJECTED";
            default -> "ManagementResponse(0x%x)".formatted(value);
        };
    }
}

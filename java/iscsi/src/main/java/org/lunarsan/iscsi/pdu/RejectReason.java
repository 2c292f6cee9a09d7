package org.lunarsan.iscsi.pdu;

/**
 * Reasons for rejecting a PDU. RFC 7143 §11.17.1.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class RejectReason {
    /** Data digest error. */
    public static final int DATA_DIGEST_ERROR = 0x02;

    /** SNACK Reject. */
    public static final int SNACK_REJECT = 0x03;

    /** Protocol error. */
    public static final int PROTOCOL_ERROR = 0x04;

    /** Command not supported. */
    public static final int COMMAND_NOT_SUPPORTED = 0x05;

    /** Too many immediate commands. */
    public static final int IMMEDIATE_COMMAND_REJECT = 0x06;

    /** Task in progress. */
    public static final int TASK_IN_PROGRESS = 0x07;

    /** Invalid DataACK. */
    public static final int INVALID_DATA_ACK = 0x08;

    /** Invalid PDU field. */
    public static final int INVALID_PDU_FIELD = 0x09;

    /** Long operation reject. */
    public static final int LONG_OPERATION_REJECT = 0x0a;

    /** Waiting for a logout. */
    public static final int WAITING_FOR_LOGOUT = 0x0c;

    private RejectReason() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case DATA_DIGEST_ERROR -> "DATA_DIGEST_ERROR";
            case SNACK_REJECT -> "SNACK_REJECT";
            case PROTOCOL_ERROR -> "PROTOCOL_ERROR";
            case COMMAND_NOT_SUPPORTED -> "COMMAND_NOT_SUPPORTED";
            case IMMEDIATE_COMMAND_REJECT -> "IMMEDIATE_COMMAND_REJECT";
            case TASK_IN_PROGRESS -> "TASK_IN_PROGRESS";
            case INVALID_DATA_ACK -> "INVALID_DATA_ACK";
            case INVALID_PDU_FIELD -> "INVALID_PDU_FIELD";
            case LONG_OPERATION_REJECT -> "LONG_OPERATION_REJECT";
            case WAITING_FOR_LOGOUT -> "WAITING_FOR_LOGOUT";
            default -> "RejectReason(0x%x)".formatted(value);
        };
    }
}

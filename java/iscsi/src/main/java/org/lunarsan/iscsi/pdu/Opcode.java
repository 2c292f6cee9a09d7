package org.lunarsan.iscsi.pdu;

/**
 * The six-bit operation code in the first byte. RFC 7143 §11.2.1.2.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class Opcode {
    /** NOP-Out. */
    public static final int NOP_OUT = 0x00;

    /** SCSI Command. */
    public static final int SCSI_COMMAND = 0x01;

    /** Task Management Function Request. */
    public static final int TASK_MANAGEMENT_REQUEST = 0x02;

    /** Login Request. */
    public static final int LOGIN_REQUEST = 0x03;

    /** Text Request. */
    public static final int TEXT_REQUEST = 0x04;

    /** SCSI Data-Out. */
    public static final int DATA_OUT = 0x05;

    /** Logout Request. */
    public static final int LOGOUT_REQUEST = 0x06;

    /** SNACK Request. */
    public static final int SNACK_REQUEST = 0x10;

    /** NOP-In. */
    public static final int NOP_IN = 0x20;

    /** SCSI Response. */
    public static final int SCSI_RESPONSE = 0x21;

    /** Task Management Function Response. */
    public static final int TASK_MANAGEMENT_RESPONSE = 0x22;

    /** Login Response. */
    public static final int LOGIN_RESPONSE = 0x23;

    /** Text Response. */
    public static final int TEXT_RESPONSE = 0x24;

    /** SCSI Data-In. */
    public static final int DATA_IN = 0x25;

    /** Logout Response. */
    public static final int LOGOUT_RESPONSE = 0x26;

    /** Ready To Transfer. */
    public static final int READY_TO_TRANSFER = 0x31;

    /** Asynchronous Message. */
    public static final int ASYNC_MESSAGE = 0x32;

    /** Reject. */
    public static final int REJECT = 0x3f;

    private Opcode() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case NOP_OUT -> "NOP_OUT";
            case SCSI_COMMAND -> "SCSI_COMMAND";
            case TASK_MANAGEMENT_REQUEST -> "TASK_MANAGEMENT_REQUEST";
            case LOGIN_REQUEST -> "LOGIN_REQUEST";
            case TEXT_REQUEST -> "TEXT_REQUEST";
            case DATA_OUT -> "DATA_OUT";
            case LOGOUT_REQUEST -> "LOGOUT_REQUEST";
            case SNACK_REQUEST -> "SNACK_REQUEST";
            case NOP_IN -> "NOP_IN";
            case SCSI_RESPONSE -> "SCSI_RESPONSE";
            case TASK_MANAGEMENT_RESPONSE -> "TASK_MANAGEMENT_RESPONSE";
            case LOGIN_RESPONSE -> "LOGIN_RESPONSE";
            case TEXT_RESPONSE -> "TEXT_RESPONSE";
            case DATA_IN -> "DATA_IN";
            case LOGOUT_RESPONSE -> "LOGOUT_RESPONSE";
            case READY_TO_TRANSFER -> "READY_TO_TRANSFER";
            case ASYNC_MESSAGE -> "ASYNC_MESSAGE";
            case REJECT -> "REJECT";
            default -> "Opcode(0x%x)".formatted(value);
        };
    }

    /** The I bit of the first byte: a request for immediate delivery. RFC 7143 §11.2.1.1. */
    public static final int IMMEDIATE = 0x40;
}

package org.lunarsan.iscsi.pdu;

/**
 * Attributes that order tasks. RFC 7143 §11.3.1.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class TaskAttribute {
    /** Untagged. */
    public static final int UNTAGGED = 0x00;

    /** Simple. */
    public static final int SIMPLE = 0x01;

    /** Ordered. */
    public static final int ORDERED = 0x02;

    /** Head of queue. */
    public static final int HEAD_OF_QUEUE = 0x03;

    /** ACA. */
    public static final int ACA = 0x04;

    private TaskAttribute() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case UNTAGGED -> "UNTAGGED";
            case SIMPLE -> "SIMPLE";
            case ORDERED -> "ORDERED";
            case HEAD_OF_QUEUE -> "HEAD_OF_QUEUE";
            case ACA -> "ACA";
            default -> "TaskAttribute(0x%x)".formatted(value);
        };
    }
}

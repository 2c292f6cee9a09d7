package org.lunarsan.iscsi.pdu;

/**
 * Response code of a command: tells whether it reached the target's SCSI layer. RFC 7143 §11.4.3.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class ServiceResponse {
    /** The command reached it. */
    public static final int COMMAND_COMPLETED = 0x00;

    /** The command did not reach it. */
    public static final int TARGET_FAILURE = 0x01;

    private ServiceResponse() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case COMMAND_COMPLETED -> "COMMAND_COMPLETED";
            case TARGET_FAILURE -> "TARGET_FAILURE";
            default -> "ServiceResponse(0x%x)".formatted(value);
        };
    }
}

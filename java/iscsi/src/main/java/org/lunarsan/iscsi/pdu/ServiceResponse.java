package org.lunarsan.iscsi.pdu;

/**
 * Whether a command reached the target's SCSI layer. RFC 7143 §11.4.3.
 *
 * <p>Numbers from the wire stay numbers: any value decodes, what it means is judged by the machine.
 *
 * <p>Threads: no state.
 */
public final class ServiceResponse {
    /** It did. */
    public static final int COMMAND_COMPLETED = 0x00;

    /** It did not. */
    public static final int TARGET_FAILURE = 0x01;

    private ServiceResponse() {
    }

    /**
     * The name of a number, for messages.
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

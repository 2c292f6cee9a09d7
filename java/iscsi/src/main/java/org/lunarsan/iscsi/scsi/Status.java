package org.lunarsan.iscsi.scsi;

/**
 * Status byte. SAM-5 §5.3.1.
 *
 * <p>Threads: no state.
 */
public final class Status {
    /** GOOD. */
    public static final int GOOD = 0x00;

    /** CHECK CONDITION: sense data has details. */
    public static final int CHECK_CONDITION = 0x02;

    /** CONDITION MET. */
    public static final int CONDITION_MET = 0x04;

    /** BUSY: try again later. */
    public static final int BUSY = 0x08;

    /** RESERVATION CONFLICT: another nexus holds a reservation. */
    public static final int RESERVATION_CONFLICT = 0x18;

    /** TASK SET FULL: try again later. */
    public static final int TASK_SET_FULL = 0x28;

    /** ACA ACTIVE. */
    public static final int ACA_ACTIVE = 0x30;

    /** TASK ABORTED: by another nexus. */
    public static final int TASK_ABORTED = 0x40;

    private Status() {
    }

    /**
     * Returns the name of a status, for messages.
     *
     * @param status the byte
     * @return its name, or the byte in hex
     */
    public static String name(int status) {
        return switch (status) {
            case GOOD -> "GOOD";
            case CHECK_CONDITION -> "CHECK CONDITION";
            case CONDITION_MET -> "CONDITION MET";
            case BUSY -> "BUSY";
            case RESERVATION_CONFLICT -> "RESERVATION CONFLICT";
            case TASK_SET_FULL -> "TASK SET FULL";
            case ACA_ACTIVE -> "ACA ACTIVE";
            case TASK_ABORTED -> "TASK ABORTED";
            default -> "status 0x%02x".formatted(status);
        };
    }
}

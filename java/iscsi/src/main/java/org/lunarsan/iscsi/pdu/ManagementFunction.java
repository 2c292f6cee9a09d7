package org.lunarsan.iscsi.pdu;

/**
 * Task management functions. RFC 7143 §11.5.1, RFC 7144 §6.3.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class ManagementFunction {
    /** ABORT TASK. */
    public static final int ABORT_TASK = 0x01;

    /** ABORT TASK SET. */
    public static final int ABORT_TASK_SET = 0x02;

    /** CLEAR ACA. */
    public static final int CLEAR_ACA = 0x03;

    /** CLEAR TASK SET. */
    public static final int CLEAR_TASK_SET = 0x04;

    /** LOGICAL UNIT RESET. */
    public static final int LOGICAL_UNIT_RESET = 0x05;

    /** TARGET WARM RESET. */
    public static final int TARGET_WARM_RESET = 0x06;

    /** TARGET COLD RESET. */
    public static final int TARGET_COLD_RESET = 0x07;

    /** TASK REASSIGN. */
    public static final int TASK_REASSIGN = 0x08;

    /** QUERY TASK. */
    public static final int QUERY_TASK = 0x09;

    /** QUERY TASK SET. */
    public static final int QUERY_TASK_SET = 0x0a;

    /** I T NEXUS RESET. */
    public static final int I_T_NEXUS_RESET = 0x0b;

    /** QUERY ASYNCHRONOUS EVENT. */
    public static final int QUERY_ASYNCHRONOUS_EVENT = 0x0c;

    private ManagementFunction() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case ABORT_TASK -> "ABORT_TASK";
            case ABORT_TASK_SET -> "ABORT_TASK_SET";
            case CLEAR_ACA -> "CLEAR_ACA";
            case CLEAR_TASK_SET -> "CLEAR_TASK_SET";
            case LOGICAL_UNIT_RESET -> "LOGICAL_UNIT_RESET";
            case TARGET_WARM_RESET -> "TARGET_WARM_RESET";
            case TARGET_COLD_RESET -> "TARGET_COLD_RESET";
            case TASK_REASSIGN -> "TASK_REASSIGN";
            case QUERY_TASK -> "QUERY_TASK";
            case QUERY_TASK_SET -> "QUERY_TASK_SET";
            case I_T_NEXUS_RESET -> "I_T_NEXUS_RESET";
            case QUERY_ASYNCHRONOUS_EVENT -> "QUERY_ASYNCHRONOUS_EVENT";
            default -> "ManagementFunction(0x%x)".formatted(value);
        };
    }

    /**
     * True if it may end several tasks: the semantics of RFC 7143 §4.2.3.3 or §4.2.3.4 apply.
     *
     * @param function the function
     * @return whether it may
     */
    public static boolean isMultiTask(int function) {
        return function == ABORT_TASK_SET || function == CLEAR_TASK_SET
                || function == LOGICAL_UNIT_RESET || isOfAllUnits(function);
    }

    /**
     * True if it ends the tasks of all units that the session sees; its LUN field is reserved. RFC
     * 7143 §11.5.3, RFC 7144 §6.3.1.
     *
     * @param function the function
     * @return whether it does
     */
    public static boolean isOfAllUnits(int function) {
        return function == TARGET_WARM_RESET || function == TARGET_COLD_RESET
                || function == I_T_NEXUS_RESET;
    }

    /**
     * True if it names one task.
     *
     * @param function the function
     * @return whether it does
     */
    public static boolean isOfOneTask(int function) {
        return function == ABORT_TASK || function == QUERY_TASK;
    }

    /**
     * The smallest iSCSIProtocolLevel at which it is allowed. RFC 7144 §6.3.
     *
     * @param function the function
     * @return 1 or 2
     */
    public static int protocolLevel(int function) {
        return function >= QUERY_TASK ? 2 : 1;
    }
}

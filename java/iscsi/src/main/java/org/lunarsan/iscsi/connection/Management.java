package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * A task management function. RFC 7143 §11.5. TASK REASSIGN is refused, because it needs
 * ErrorRecoveryLevel 2, and so are those of RFC 7144 below iSCSIProtocolLevel 2. After I_T NEXUS
 * RESET the target ends the session. The tasks that it ends complete before it does.
 *
 * <p>Threads: as {@link Request}.
 */
public final class Management extends Request {
    final int function;
    final long lun;
    final Command referenced;
    /** The tag of the referenced command when the function was submitted. */
    int referencedTag = BasicHeader.TAG_RESERVED;
    int response;
    int information;

    /**
     * Creates a function on a unit, or on all.
     *
     * @param function see {@link org.lunarsan.iscsi.pdu.ManagementFunction}
     * @param lun the unit; zero for functions on all units
     */
    public Management(int function, long lun) {
        this.function = function;
        this.lun = lun;
        this.referenced = null;
        this.immediate = true;
    }

    /**
     * Creates an ABORT TASK or QUERY TASK.
     *
     * @param function the function
     * @param referenced the task; it was submitted to the same connection
     */
    public Management(int function, Command referenced) {
        this.function = function;
        this.lun = referenced.lun();
        this.referenced = referenced;
        this.immediate = true;
    }

    /**
     * The answer of the target.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.ManagementResponse}
     */
    public int response() {
        return response;
    }

    /**
     * Additional Response Information, RFC 7144 §6.4.
     *
     * @return three bytes; zero if there is none
     */
    public int information() {
        return information;
    }
}

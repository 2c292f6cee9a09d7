package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * A task management function to carry out. RFC 7143 §11.5. TASK REASSIGN is refused: it needs
 * ErrorRecoveryLevel 2; so are those of RFC 7144 below iSCSIProtocolLevel 2. After I_T NEXUS RESET
 * the target ends the session. The tasks that it ends come back before it does.
 *
 * <p>Threads: as {@link Request}.
 */
public final class Management extends Request {
    final int function;
    final long lun;
    final Command referenced;
    /** The tag that the referenced command had when this was asked. */
    int referencedTag = BasicHeader.TAG_RESERVED;
    int response;
    int information;

    /**
     * A function on a unit, or on all.
     *
     * @param function see {@link org.lunarsan.iscsi.pdu.ManagementFunction}
     * @param lun on which unit; zero for those that mean all units
     */
    public Management(int function, long lun) {
        this.function = function;
        this.lun = lun;
        this.referenced = null;
        this.immediate = true;
    }

    /**
     * ABORT TASK or QUERY TASK.
     *
     * @param function which
     * @param referenced the task that is meant; it was submitted to the same connection
     */
    public Management(int function, Command referenced) {
        this.function = function;
        this.lun = referenced.lun();
        this.referenced = referenced;
        this.immediate = true;
    }

    /**
     * What the target answered.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.ManagementResponse}
     */
    public int response() {
        return response;
    }

    /**
     * Additional Response Information, RFC 7144 §6.4.
     *
     * @return three bytes; zero where there is none
     */
    public int information() {
        return information;
    }
}

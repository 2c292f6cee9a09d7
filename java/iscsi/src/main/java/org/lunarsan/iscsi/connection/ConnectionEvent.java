package org.lunarsan.iscsi.connection;

/**
 * What a connection tells its driver unasked.
 *
 * <p>Threads: immutable, but for the bytes of sense data, which are the receiver's.
 */
public sealed interface ConnectionEvent {
    /**
     * An Asynchronous Message. What the protocol asks of the initiator in return happens without
     * the driver. RFC 7143 §11.9.
     *
     * @param event see {@link org.lunarsan.iscsi.pdu.AsyncEvent}
     * @param lun for a SCSI event
     * @param vendorCode for a vendor's event
     * @param parameter1 as the kind defines it
     * @param parameter2 likewise
     * @param parameter3 likewise
     * @param sense of a SCSI event, without the SenseLength field
     */
    record Asynchronous(int event, long lun, int vendorCode, int parameter1, int parameter2,
            int parameter3, byte[] sense) implements ConnectionEvent {
    }

    /**
     * Nothing more will be sent: flush what was, then close the socket. Comes once, and last.
     *
     * @param reason why
     */
    record Closed(CloseReason reason) implements ConnectionEvent {
    }
}

package org.lunarsan.iscsi.connection;

/**
 * An event that a connection reports to its driver.
 *
 * <p>Threads: immutable, except for the bytes of sense data, which the receiver owns.
 */
public sealed interface ConnectionEvent {
    /**
     * An Asynchronous Message. The connection itself does what the protocol requires of the
     * initiator in return. RFC 7143 §11.9.
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
     * The connection is closed: flush the sent PDUs, then close the socket. Reported once, as the
     * last event.
     *
     * @param reason the reason
     */
    record Closed(CloseReason reason) implements ConnectionEvent {
    }
}

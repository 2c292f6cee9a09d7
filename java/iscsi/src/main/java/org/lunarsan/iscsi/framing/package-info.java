/**
 * Conversion between bytes and PDUs: digests, padding, Additional Header Segments. RFC 7143 §11.2.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.framing.Deframer} finds headers and payloads in received bytes;
 * {@link org.lunarsan.iscsi.framing.Framer} adds digests and padding to outgoing PDUs;
 * {@link org.lunarsan.iscsi.framing.CommandSegments} reads and writes the Additional Header
 * Segments of a SCSI Command.
 *
 * <h2>Reading and writing</h2>
 * A payload is never held here: it goes from the caller's receive buffer, or from the socket
 * itself, to its destination. CRC32C is the JDK's. Nothing is allocated per PDU.
 *
 * <h2>Threads</h2>
 * A deframer belongs to the reader of a connection, a framer to its writer.
 *
 * <h2>Errors</h2>
 * A header digest that does not match, or a data segment longer than we declared, are events after
 * which the stream is lost: ErrorRecoveryLevel 0 requires a new connection.
 */
package org.lunarsan.iscsi.framing;

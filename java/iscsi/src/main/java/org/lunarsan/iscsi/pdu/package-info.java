/**
 * Every PDU of RFC 7143 §11 as a table of fields: encode, decode, nothing else.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.pdu.Pdu#decode} decodes any header; each kind is a record whose
 * components are the fields, in the order of the bytes. For the PDUs of every command, a class of
 * static methods ({@link org.lunarsan.iscsi.pdu.ScsiCommandView},
 * {@link org.lunarsan.iscsi.pdu.DataInView}, {@link org.lunarsan.iscsi.pdu.ScsiResponseView},
 * {@link org.lunarsan.iscsi.pdu.ReadyToTransferView}, {@link org.lunarsan.iscsi.pdu.DataOutView})
 * reads and writes the same fields in a reused buffer, and the record uses it.
 *
 * <h2>Reading and writing</h2>
 * Decoding is total: any 48 bytes decode, and codes stay numbers (named by
 * {@link org.lunarsan.iscsi.pdu.Opcode} and similar classes). The login and the connection
 * interpret a value in their state. Encoding writes zero to reserved fields. Numbers of 32
 * bits are {@code int}s of the same bits; {@link org.lunarsan.iscsi.wire.SerialNumber} compares
 * them. Additional Header Segments and data segments belong to the framing.
 *
 * <h2>Threads</h2>
 * Records are immutable, the rest has no state.
 *
 * <h2>Errors</h2>
 * A buffer with fewer than 48 bytes is a mistake of the caller.
 */
package org.lunarsan.iscsi.pdu;

/**
 * Basic encodings shared by all protocols here: big-endian fields, serial numbers that wrap,
 * logical unit numbers, hexadecimal text.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.wire.Fields} reads and writes numbers in a {@link java.nio.ByteBuffer},
 * independent of the buffer's byte order. {@link org.lunarsan.iscsi.wire.SerialNumber} compares
 * CmdSN, StatSN and DataSN as RFC 1982 requires. {@link org.lunarsan.iscsi.wire.Lun} decodes and
 * encodes the eight bytes of a LUN field.
 *
 * <h2>Threads</h2>
 * The classes have no state; all methods may be called from any thread. The caller owns the
 * buffers.
 *
 * <h2>Errors</h2>
 * An index outside of the buffer is a mistake of the caller and causes
 * {@link java.lang.IndexOutOfBoundsException}: code that decodes input of a peer checks lengths
 * first.
 */
package org.lunarsan.iscsi.wire;

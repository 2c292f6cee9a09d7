/**
 * The words of every protocol here: big-endian fields, serial numbers that wrap, logical unit
 * numbers, hexadecimal text.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.wire.Fields} reads and writes numbers at places of a
 * {@link java.nio.ByteBuffer}, whatever byte order the buffer is set to.
 * {@link org.lunarsan.iscsi.wire.SerialNumber} compares CmdSN, StatSN and DataSN as RFC 1982 asks.
 * {@link org.lunarsan.iscsi.wire.Lun} reads and makes the eight bytes of a LUN field.
 *
 * <h2>Threads</h2>
 * Nothing here has state; all may be called from any thread. A buffer is the caller's.
 *
 * <h2>Errors</h2>
 * A place that lies outside of the buffer is a mistake of the caller and gives
 * {@link java.lang.IndexOutOfBoundsException}: those who read what a peer sent check lengths first.
 */
package org.lunarsan.iscsi.wire;

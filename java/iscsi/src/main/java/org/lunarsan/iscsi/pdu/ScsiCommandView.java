package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The fields of a {@link ScsiCommand} in a buffer, without an allocation. RFC 7143 §11.3.
 *
 * <p>{@code header} is any buffer, {@code at} the absolute index of the header's first byte. The
 * position of the buffer is neither used nor changed.
 *
 * <p>Threads: no state.
 */
public final class ScsiCommandView {
    /** Length of the CDB field. */
    public static final int CDB_BYTES = 16;

    private ScsiCommandView() {
    }

    /**
     * Byte 0: the I bit (requests only) and the opcode.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int first(ByteBuffer header, int at) {
        return BasicHeader.first(header, at);
    }

    /**
     * Byte 1: flag bits.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int flags(ByteBuffer header, int at) {
        return Fields.u8(header, at + 1);
    }

    /**
     * Command priority in the high four bits, RFC 7144 §5.1; zero below protocol level 2.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int priority(ByteBuffer header, int at) {
        return Fields.u8(header, at + 2);
    }

    /**
     * TotalAHSLength, in words of four bytes.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int totalAhsWords(ByteBuffer header, int at) {
        return Fields.u8(header, at + 4);
    }

    /**
     * DataSegmentLength in bytes, without padding.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int dataSegmentLength(ByteBuffer header, int at) {
        return Fields.u24(header, at + 5);
    }

    /**
     * LUN field, see {@link org.lunarsan.iscsi.wire.Lun}.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static long lun(ByteBuffer header, int at) {
        return Fields.i64(header, at + 8);
    }

    /**
     * Initiator Task Tag.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int initiatorTaskTag(ByteBuffer header, int at) {
        return Fields.i32(header, at + 16);
    }

    /**
     * Expected Data Transfer Length in bytes.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expectedDataTransferLength(ByteBuffer header, int at) {
        return Fields.i32(header, at + 20);
    }

    /**
     * CmdSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int cmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 24);
    }

    /**
     * ExpStatSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expStatSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 28);
    }

    /**
     * The first 16 bytes of the CDB; longer ones continue in an AHS, §11.2.2.3.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static byte[] cdb(ByteBuffer header, int at) {
        byte[] cdb = new byte[CDB_BYTES];
        header.get(at + 32, cdb);
        return cdb;
    }

    /**
     * Writes all 48 bytes.
     *
     * @param header the buffer
     * @param at where the header begins
     * @param first byte 0: the I bit (requests only) and the opcode
     * @param flags byte 1: flag bits
     * @param priority command priority in the high four bits, RFC 7144 §5.1; zero below protocol
     *        level 2
     * @param totalAhsWords TotalAHSLength, in words of four bytes
     * @param dataSegmentLength DataSegmentLength in bytes, without padding
     * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
     * @param initiatorTaskTag Initiator Task Tag
     * @param expectedDataTransferLength Expected Data Transfer Length in bytes
     * @param cmdSn CmdSN
     * @param expStatSn ExpStatSN
     * @param cdb the first 16 bytes of the CDB; longer ones continue in an AHS, §11.2.2.3
     */
    public static void encode(ByteBuffer header, int at, int first, int flags, int priority,
            int totalAhsWords, int dataSegmentLength, long lun, int initiatorTaskTag,
            int expectedDataTransferLength, int cmdSn, int expStatSn, byte[] cdb) {
        BasicHeader.zero(header, at);
        Fields.putU8(header, at, first);
        Fields.putU8(header, at + 1, flags);
        Fields.putU8(header, at + 2, priority);
        Fields.putU8(header, at + 4, totalAhsWords);
        Fields.putU24(header, at + 5, dataSegmentLength);
        Fields.putI64(header, at + 8, lun);
        Fields.putI32(header, at + 16, initiatorTaskTag);
        Fields.putI32(header, at + 20, expectedDataTransferLength);
        Fields.putI32(header, at + 24, cmdSn);
        Fields.putI32(header, at + 28, expStatSn);
        header.put(at + 32, cdb, 0, Math.min(cdb.length, CDB_BYTES));
    }
}

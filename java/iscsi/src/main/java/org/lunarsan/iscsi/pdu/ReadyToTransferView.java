package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The fields of a {@link ReadyToTransfer} in a buffer, without an allocation. RFC 7143 §11.8.
 *
 * <p>{@code header} is any buffer, {@code at} the absolute index of the header's first byte. The
 * position of the buffer is neither used nor changed.
 *
 * <p>Threads: no state.
 */
public final class ReadyToTransferView {
    private ReadyToTransferView() {
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
     * Target Transfer Tag.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int targetTransferTag(ByteBuffer header, int at) {
        return Fields.i32(header, at + 20);
    }

    /**
     * StatSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int statSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 24);
    }

    /**
     * ExpCmdSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 28);
    }

    /**
     * MaxCmdSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int maxCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 32);
    }

    /**
     * R2TSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int r2tSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 36);
    }

    /**
     * Buffer Offset.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int bufferOffsetBytes(ByteBuffer header, int at) {
        return Fields.i32(header, at + 40);
    }

    /**
     * Desired Data Transfer Length, 1 to MaxBurstLength.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int desiredLengthBytes(ByteBuffer header, int at) {
        return Fields.i32(header, at + 44);
    }

    /**
     * Writes all 48 bytes.
     *
     * @param header the buffer
     * @param at where the header begins
     * @param first byte 0: the I bit (requests only) and the opcode
     * @param flags byte 1: flag bits
     * @param totalAhsWords TotalAHSLength, in words of four bytes
     * @param dataSegmentLength DataSegmentLength in bytes, without padding
     * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
     * @param initiatorTaskTag Initiator Task Tag
     * @param targetTransferTag Target Transfer Tag
     * @param statSn StatSN
     * @param expCmdSn ExpCmdSN
     * @param maxCmdSn MaxCmdSN
     * @param r2tSn R2TSN
     * @param bufferOffsetBytes Buffer Offset
     * @param desiredLengthBytes Desired Data Transfer Length, 1 to MaxBurstLength
     */
    public static void encode(ByteBuffer header, int at, int first, int flags, int totalAhsWords,
            int dataSegmentLength, long lun, int initiatorTaskTag, int targetTransferTag,
            int statSn, int expCmdSn, int maxCmdSn, int r2tSn, int bufferOffsetBytes,
            int desiredLengthBytes) {
        BasicHeader.zero(header, at);
        Fields.putU8(header, at, first);
        Fields.putU8(header, at + 1, flags);
        Fields.putU8(header, at + 4, totalAhsWords);
        Fields.putU24(header, at + 5, dataSegmentLength);
        Fields.putI64(header, at + 8, lun);
        Fields.putI32(header, at + 16, initiatorTaskTag);
        Fields.putI32(header, at + 20, targetTransferTag);
        Fields.putI32(header, at + 24, statSn);
        Fields.putI32(header, at + 28, expCmdSn);
        Fields.putI32(header, at + 32, maxCmdSn);
        Fields.putI32(header, at + 36, r2tSn);
        Fields.putI32(header, at + 40, bufferOffsetBytes);
        Fields.putI32(header, at + 44, desiredLengthBytes);
    }
}

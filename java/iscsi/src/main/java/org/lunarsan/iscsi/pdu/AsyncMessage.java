package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * An Asynchronous Message of the target. RFC 7143 §11.9.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
 * @param initiatorTaskTag Initiator Task Tag
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 * @param event see {@link AsyncEvent}
 * @param vendorCode AsyncVCode
 * @param parameter1 Parameter1
 * @param parameter2 Parameter2
 * @param parameter3 Parameter3
 */
public record AsyncMessage(int first, int flags, int totalAhsWords, int dataSegmentLength, long lun,
        int initiatorTaskTag, int statSn, int expCmdSn, int maxCmdSn, int event, int vendorCode,
        int parameter1, int parameter2, int parameter3) implements TargetPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static AsyncMessage decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new AsyncMessage(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 4), Fields.u24(header, at + 5), Fields.i64(header, at + 8),
                Fields.i32(header, at + 16), Fields.i32(header, at + 24),
                Fields.i32(header, at + 28), Fields.i32(header, at + 32),
                Fields.u8(header, at + 36), Fields.u8(header, at + 37), Fields.u16(header, at + 38),
                Fields.u16(header, at + 40), Fields.u16(header, at + 42));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flags);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putI64(out, at + 8, lun);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putI32(out, at + 24, statSn);
        Fields.putI32(out, at + 28, expCmdSn);
        Fields.putI32(out, at + 32, maxCmdSn);
        Fields.putU8(out, at + 36, event);
        Fields.putU8(out, at + 37, vendorCode);
        Fields.putU16(out, at + 38, parameter1);
        Fields.putU16(out, at + 40, parameter2);
        Fields.putU16(out, at + 42, parameter3);
    }
}

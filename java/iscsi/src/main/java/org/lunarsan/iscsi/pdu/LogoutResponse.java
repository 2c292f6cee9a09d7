package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The answer to a Logout Request. RFC 7143 §11.15.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param response see {@link LogoutResult}
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param initiatorTaskTag Initiator Task Tag
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 * @param timeToWaitSeconds Time2Wait
 * @param timeToRetainSeconds Time2Retain
 */
public record LogoutResponse(int first, int flags, int response, int totalAhsWords,
        int dataSegmentLength, int initiatorTaskTag, int statSn, int expCmdSn, int maxCmdSn,
        int timeToWaitSeconds, int timeToRetainSeconds) implements TargetPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static LogoutResponse decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new LogoutResponse(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 2), Fields.u8(header, at + 4), Fields.u24(header, at + 5),
                Fields.i32(header, at + 16), Fields.i32(header, at + 24),
                Fields.i32(header, at + 28), Fields.i32(header, at + 32),
                Fields.u16(header, at + 40), Fields.u16(header, at + 42));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flags);
        Fields.putU8(out, at + 2, response);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putI32(out, at + 24, statSn);
        Fields.putI32(out, at + 28, expCmdSn);
        Fields.putI32(out, at + 32, maxCmdSn);
        Fields.putU16(out, at + 40, timeToWaitSeconds);
        Fields.putU16(out, at + 42, timeToRetainSeconds);
    }
}

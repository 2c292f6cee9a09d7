package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * A request to close a connection or the session. RFC 7143 §11.14.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flagsAndReason bit 7 set, and the {@link LogoutReason} in the other seven
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param initiatorTaskTag Initiator Task Tag
 * @param cid CID
 * @param cmdSn CmdSN
 * @param expStatSn ExpStatSN
 */
public record LogoutRequest(int first, int flagsAndReason, int totalAhsWords, int dataSegmentLength,
        int initiatorTaskTag, int cid, int cmdSn, int expStatSn) implements InitiatorPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static LogoutRequest decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new LogoutRequest(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 4), Fields.u24(header, at + 5), Fields.i32(header, at + 16),
                Fields.u16(header, at + 20), Fields.i32(header, at + 24),
                Fields.i32(header, at + 28));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flagsAndReason);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putU16(out, at + 20, cid);
        Fields.putI32(out, at + 24, cmdSn);
        Fields.putI32(out, at + 28, expStatSn);
    }

    @Override
    public int flags() {
        return flagsAndReason;
    }

    /**
     * The reason: the object to be closed.
     *
     * @return see {@link LogoutReason}
     */
    public int reason() {
        return flagsAndReason & 0x7f;
    }
}

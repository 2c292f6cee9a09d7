package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * A step of a login. Always immediate. RFC 7143 §11.12.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param versionMax Version-max
 * @param versionMin Version-min
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param isid ISID, six bytes
 * @param tsih TSIH; 0 requests a new session
 * @param initiatorTaskTag Initiator Task Tag
 * @param cid CID
 * @param cmdSn CmdSN
 * @param expStatSn ExpStatSN
 */
public record LoginRequest(int first, int flags, int versionMax, int versionMin, int totalAhsWords,
        int dataSegmentLength, long isid, int tsih, int initiatorTaskTag, int cid, int cmdSn,
        int expStatSn) implements InitiatorPdu {
    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static LoginRequest decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new LoginRequest(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 2), Fields.u8(header, at + 3), Fields.u8(header, at + 4),
                Fields.u24(header, at + 5), Fields.u48(header, at + 8), Fields.u16(header, at + 14),
                Fields.i32(header, at + 16), Fields.u16(header, at + 20),
                Fields.i32(header, at + 24), Fields.i32(header, at + 28));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flags);
        Fields.putU8(out, at + 2, versionMax);
        Fields.putU8(out, at + 3, versionMin);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putU48(out, at + 8, isid);
        Fields.putU16(out, at + 14, tsih);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putU16(out, at + 20, cid);
        Fields.putI32(out, at + 24, cmdSn);
        Fields.putI32(out, at + 28, expStatSn);
    }
}

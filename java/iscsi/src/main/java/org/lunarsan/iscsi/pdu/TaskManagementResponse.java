package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The end of a task management function. RFC 7143 §11.6.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param response see {@link ManagementResponse}
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param information Additional Response Information, RFC 7144 §6.4.1; zero below protocol level 2
 * @param initiatorTaskTag Initiator Task Tag
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 */
public record TaskManagementResponse(int first, int flags, int response, int totalAhsWords,
        int dataSegmentLength, int information, int initiatorTaskTag, int statSn, int expCmdSn,
        int maxCmdSn) implements TargetPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static TaskManagementResponse decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new TaskManagementResponse(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 2), Fields.u8(header, at + 4), Fields.u24(header, at + 5),
                Fields.u24(header, at + 8), Fields.i32(header, at + 16),
                Fields.i32(header, at + 24), Fields.i32(header, at + 28),
                Fields.i32(header, at + 32));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flags);
        Fields.putU8(out, at + 2, response);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putU24(out, at + 8, information);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putI32(out, at + 24, statSn);
        Fields.putI32(out, at + 28, expCmdSn);
        Fields.putI32(out, at + 32, maxCmdSn);
    }
}

package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * A task management function request. RFC 7143 §11.5.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flagsAndFunction bit 7 set, and the {@link ManagementFunction} in the other seven
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
 * @param initiatorTaskTag Initiator Task Tag
 * @param referencedTaskTag Referenced Task Tag
 * @param cmdSn CmdSN
 * @param expStatSn ExpStatSN
 * @param refCmdSn RefCmdSN
 * @param expDataSn ExpDataSN
 */
public record TaskManagementRequest(int first, int flagsAndFunction, int totalAhsWords,
        int dataSegmentLength, long lun, int initiatorTaskTag, int referencedTaskTag, int cmdSn,
        int expStatSn, int refCmdSn, int expDataSn) implements InitiatorPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static TaskManagementRequest decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new TaskManagementRequest(BasicHeader.first(header, at), Fields.u8(header, at + 1),
                Fields.u8(header, at + 4), Fields.u24(header, at + 5), Fields.i64(header, at + 8),
                Fields.i32(header, at + 16), Fields.i32(header, at + 20),
                Fields.i32(header, at + 24), Fields.i32(header, at + 28),
                Fields.i32(header, at + 32), Fields.i32(header, at + 36));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        Fields.putU8(out, at, first);
        Fields.putU8(out, at + 1, flagsAndFunction);
        Fields.putU8(out, at + 4, totalAhsWords);
        Fields.putU24(out, at + 5, dataSegmentLength);
        Fields.putI64(out, at + 8, lun);
        Fields.putI32(out, at + 16, initiatorTaskTag);
        Fields.putI32(out, at + 20, referencedTaskTag);
        Fields.putI32(out, at + 24, cmdSn);
        Fields.putI32(out, at + 28, expStatSn);
        Fields.putI32(out, at + 32, refCmdSn);
        Fields.putI32(out, at + 36, expDataSn);
    }

    @Override
    public int flags() {
        return flagsAndFunction;
    }

    /**
     * The requested function.
     *
     * @return see {@link ManagementFunction}
     */
    public int function() {
        return flagsAndFunction & 0x7f;
    }
}

package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;

/**
 * Data from the initiator. RFC 7143 §11.7.
 *
 * <p>Uses {@link DataOutView}, which reads and writes the same fields without an allocation.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
 * @param initiatorTaskTag Initiator Task Tag
 * @param targetTransferTag Target Transfer Tag
 * @param expStatSn ExpStatSN
 * @param dataSn DataSN
 * @param bufferOffsetBytes Buffer Offset
 */
public record DataOut(int first, int flags, int totalAhsWords, int dataSegmentLength, long lun,
        int initiatorTaskTag, int targetTransferTag, int expStatSn, int dataSn,
        int bufferOffsetBytes) implements InitiatorPdu {
    /** F: the last PDU of its sequence. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static DataOut decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new DataOut(DataOutView.first(header, at), DataOutView.flags(header, at),
                DataOutView.totalAhsWords(header, at), DataOutView.dataSegmentLength(header, at),
                DataOutView.lun(header, at), DataOutView.initiatorTaskTag(header, at),
                DataOutView.targetTransferTag(header, at), DataOutView.expStatSn(header, at),
                DataOutView.dataSn(header, at), DataOutView.bufferOffsetBytes(header, at));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        DataOutView.encode(out, at, first, flags, totalAhsWords, dataSegmentLength, lun,
                initiatorTaskTag, targetTransferTag, expStatSn, dataSn, bufferOffsetBytes);
    }
}

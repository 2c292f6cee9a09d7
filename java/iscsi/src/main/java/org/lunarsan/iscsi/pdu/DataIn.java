package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;

/**
 * Data to the initiator, perhaps with the status of the command. RFC 7143 §11.7.
 *
 * <p>Uses {@link DataInView}, which reads and writes the same fields without an allocation.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param status SAM status byte, with the S bit
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
 * @param initiatorTaskTag Initiator Task Tag
 * @param targetTransferTag Target Transfer Tag
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 * @param dataSn DataSN
 * @param bufferOffsetBytes Buffer Offset
 * @param residualBytes Residual Count
 */
public record DataIn(int first, int flags, int status, int totalAhsWords, int dataSegmentLength,
        long lun, int initiatorTaskTag, int targetTransferTag, int statSn, int expCmdSn,
        int maxCmdSn, int dataSn, int bufferOffsetBytes, int residualBytes) implements TargetPdu {
    /** F: the last PDU of its sequence. */
    public static final int FINAL = 0x80;

    /** A: a SNACK of type DataACK is requested. */
    public static final int ACKNOWLEDGE = 0x40;

    /** O. */
    public static final int OVERFLOW = 0x04;

    /** U. */
    public static final int UNDERFLOW = 0x02;

    /** S: the PDU carries the status of the command. */
    public static final int STATUS = 0x01;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static DataIn decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new DataIn(DataInView.first(header, at), DataInView.flags(header, at),
                DataInView.status(header, at), DataInView.totalAhsWords(header, at),
                DataInView.dataSegmentLength(header, at), DataInView.lun(header, at),
                DataInView.initiatorTaskTag(header, at), DataInView.targetTransferTag(header, at),
                DataInView.statSn(header, at), DataInView.expCmdSn(header, at),
                DataInView.maxCmdSn(header, at), DataInView.dataSn(header, at),
                DataInView.bufferOffsetBytes(header, at), DataInView.residualBytes(header, at));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        DataInView.encode(out, at, first, flags, status, totalAhsWords, dataSegmentLength, lun,
                initiatorTaskTag, targetTransferTag, statSn, expCmdSn, maxCmdSn, dataSn,
                bufferOffsetBytes, residualBytes);
    }
}

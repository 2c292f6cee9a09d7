package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;

/**
 * Solicits one contiguous piece of the data of a write. RFC 7143 §11.8.
 *
 * <p>Uses {@link ReadyToTransferView}, which reads and writes the same fields without an
 * allocation.
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
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 * @param r2tSn R2TSN
 * @param bufferOffsetBytes Buffer Offset
 * @param desiredLengthBytes Desired Data Transfer Length, 1 to MaxBurstLength
 */
public record ReadyToTransfer(int first, int flags, int totalAhsWords, int dataSegmentLength,
        long lun, int initiatorTaskTag, int targetTransferTag, int statSn, int expCmdSn,
        int maxCmdSn, int r2tSn, int bufferOffsetBytes, int desiredLengthBytes)
        implements TargetPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static ReadyToTransfer decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new ReadyToTransfer(ReadyToTransferView.first(header, at),
                ReadyToTransferView.flags(header, at),
                ReadyToTransferView.totalAhsWords(header, at),
                ReadyToTransferView.dataSegmentLength(header, at),
                ReadyToTransferView.lun(header, at),
                ReadyToTransferView.initiatorTaskTag(header, at),
                ReadyToTransferView.targetTransferTag(header, at),
                ReadyToTransferView.statSn(header, at), ReadyToTransferView.expCmdSn(header, at),
                ReadyToTransferView.maxCmdSn(header, at), ReadyToTransferView.r2tSn(header, at),
                ReadyToTransferView.bufferOffsetBytes(header, at),
                ReadyToTransferView.desiredLengthBytes(header, at));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        ReadyToTransferView.encode(out, at, first, flags, totalAhsWords, dataSegmentLength, lun,
                initiatorTaskTag, targetTransferTag, statSn, expCmdSn, maxCmdSn, r2tSn,
                bufferOffsetBytes, desiredLengthBytes);
    }
}

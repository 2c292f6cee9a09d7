package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;

/**
 * The end of a SCSI command. RFC 7143 §11.4.
 *
 * <p>Uses {@link ScsiResponseView}, which reads and writes the same fields without an allocation.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param response see {@link ServiceResponse}
 * @param status SAM status byte
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param statusQualifier status qualifier, RFC 7144 §5.2.1; zero below protocol level 2
 * @param initiatorTaskTag Initiator Task Tag
 * @param snackTag SNACK Tag
 * @param statSn StatSN
 * @param expCmdSn ExpCmdSN
 * @param maxCmdSn MaxCmdSN
 * @param expDataSn ExpDataSN
 * @param bidiReadResidualBytes Bidirectional Read Residual Count
 * @param residualBytes Residual Count
 */
public record ScsiResponse(int first, int flags, int response, int status, int totalAhsWords,
        int dataSegmentLength, int statusQualifier, int initiatorTaskTag, int snackTag, int statSn,
        int expCmdSn, int maxCmdSn, int expDataSn, int bidiReadResidualBytes, int residualBytes)
        implements TargetPdu {
    /** F bit, always set. */
    public static final int FINAL = 0x80;

    /** o. */
    public static final int BIDI_READ_OVERFLOW = 0x10;

    /** u. */
    public static final int BIDI_READ_UNDERFLOW = 0x08;

    /** O. */
    public static final int OVERFLOW = 0x04;

    /** U. */
    public static final int UNDERFLOW = 0x02;

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static ScsiResponse decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new ScsiResponse(ScsiResponseView.first(header, at),
                ScsiResponseView.flags(header, at), ScsiResponseView.response(header, at),
                ScsiResponseView.status(header, at), ScsiResponseView.totalAhsWords(header, at),
                ScsiResponseView.dataSegmentLength(header, at),
                ScsiResponseView.statusQualifier(header, at),
                ScsiResponseView.initiatorTaskTag(header, at),
                ScsiResponseView.snackTag(header, at), ScsiResponseView.statSn(header, at),
                ScsiResponseView.expCmdSn(header, at), ScsiResponseView.maxCmdSn(header, at),
                ScsiResponseView.expDataSn(header, at),
                ScsiResponseView.bidiReadResidualBytes(header, at),
                ScsiResponseView.residualBytes(header, at));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        ScsiResponseView.encode(out, at, first, flags, response, status, totalAhsWords,
                dataSegmentLength, statusQualifier, initiatorTaskTag, snackTag, statSn, expCmdSn,
                maxCmdSn, expDataSn, bidiReadResidualBytes, residualBytes);
    }
}

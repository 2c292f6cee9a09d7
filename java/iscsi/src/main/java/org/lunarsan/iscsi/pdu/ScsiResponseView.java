package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The fields of a {@link ScsiResponse} in a buffer, without an allocation. RFC 7143 §11.4.
 *
 * <p>{@code header} is any buffer, {@code at} the absolute index of the header's first byte. The
 * position of the buffer is neither used nor changed.
 *
 * <p>Threads: no state.
 */
public final class ScsiResponseView {
    private ScsiResponseView() {
    }

    /**
     * Byte 0: the I bit (requests only) and the opcode.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int first(ByteBuffer header, int at) {
        return BasicHeader.first(header, at);
    }

    /**
     * Byte 1: flag bits.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int flags(ByteBuffer header, int at) {
        return Fields.u8(header, at + 1);
    }

    /**
     * See {@link ServiceResponse}.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int response(ByteBuffer header, int at) {
        return Fields.u8(header, at + 2);
    }

    /**
     * SAM status byte.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int status(ByteBuffer header, int at) {
        return Fields.u8(header, at + 3);
    }

    /**
     * TotalAHSLength, in words of four bytes.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int totalAhsWords(ByteBuffer header, int at) {
        return Fields.u8(header, at + 4);
    }

    /**
     * DataSegmentLength in bytes, without padding.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int dataSegmentLength(ByteBuffer header, int at) {
        return Fields.u24(header, at + 5);
    }

    /**
     * Status qualifier, RFC 7144 §5.2.1; zero below protocol level 2.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int statusQualifier(ByteBuffer header, int at) {
        return Fields.u16(header, at + 8);
    }

    /**
     * Initiator Task Tag.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int initiatorTaskTag(ByteBuffer header, int at) {
        return Fields.i32(header, at + 16);
    }

    /**
     * SNACK Tag.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int snackTag(ByteBuffer header, int at) {
        return Fields.i32(header, at + 20);
    }

    /**
     * StatSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int statSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 24);
    }

    /**
     * ExpCmdSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 28);
    }

    /**
     * MaxCmdSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int maxCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 32);
    }

    /**
     * ExpDataSN.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expDataSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 36);
    }

    /**
     * Bidirectional Read Residual Count.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int bidiReadResidualBytes(ByteBuffer header, int at) {
        return Fields.i32(header, at + 40);
    }

    /**
     * Residual Count.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int residualBytes(ByteBuffer header, int at) {
        return Fields.i32(header, at + 44);
    }

    /**
     * Writes all 48 bytes.
     *
     * @param header the buffer
     * @param at where the header begins
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
    public static void encode(ByteBuffer header, int at, int first, int flags, int response,
            int status, int totalAhsWords, int dataSegmentLength, int statusQualifier,
            int initiatorTaskTag, int snackTag, int statSn, int expCmdSn, int maxCmdSn,
            int expDataSn, int bidiReadResidualBytes, int residualBytes) {
        BasicHeader.zero(header, at);
        Fields.putU8(header, at, first);
        Fields.putU8(header, at + 1, flags);
        Fields.putU8(header, at + 2, response);
        Fields.putU8(header, at + 3, status);
        Fields.putU8(header, at + 4, totalAhsWords);
        Fields.putU24(header, at + 5, dataSegmentLength);
        Fields.putU16(header, at + 8, statusQualifier);
        Fields.putI32(header, at + 16, initiatorTaskTag);
        Fields.putI32(header, at + 20, snackTag);
        Fields.putI32(header, at + 24, statSn);
        Fields.putI32(header, at + 28, expCmdSn);
        Fields.putI32(header, at + 32, maxCmdSn);
        Fields.putI32(header, at + 36, expDataSn);
        Fields.putI32(header, at + 40, bidiReadResidualBytes);
        Fields.putI32(header, at + 44, residualBytes);
    }
}

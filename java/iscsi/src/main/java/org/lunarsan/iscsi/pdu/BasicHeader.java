package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The common fields of all Basic Header Segments, accessed in a buffer without an allocation. RFC
 * 7143 §11.2.1.
 *
 * <p>{@code header} is any buffer, {@code at} the absolute index of the header's first byte.
 *
 * <p>Threads: no state.
 */
public final class BasicHeader {
    /** Length of a Basic Header Segment in bytes. */
    public static final int HEADER_BYTES = 48;

    /** The reserved Initiator Task Tag and Target Transfer Tag. RFC 7143 §11.2.1.8. */
    public static final int TAG_RESERVED = 0xffff_ffff;

    /** The bits of the first byte that are the opcode. */
    public static final int OPCODE_MASK = 0x3f;

    /** Bit 7 of byte 1, the F bit of most PDUs. */
    public static final int FINAL = 0x80;

    /** The largest value of DataSegmentLength, in bytes. */
    public static final int DATA_SEGMENT_BYTES_MAX = 0xff_ffff;

    private BasicHeader() {
    }

    /**
     * Byte 0: the I bit and the opcode.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int first(ByteBuffer header, int at) {
        return Fields.u8(header, at);
    }

    /**
     * The opcode.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return see {@link Opcode}
     */
    public static int opcode(ByteBuffer header, int at) {
        return first(header, at) & OPCODE_MASK;
    }

    /**
     * The I bit.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return whether it is set
     */
    public static boolean isImmediate(ByteBuffer header, int at) {
        return (first(header, at) & Opcode.IMMEDIATE) != 0;
    }

    /**
     * Byte 1.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int flags(ByteBuffer header, int at) {
        return Fields.u8(header, at + 1);
    }

    /**
     * TotalAHSLength.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return words of four bytes
     */
    public static int totalAhsWords(ByteBuffer header, int at) {
        return Fields.u8(header, at + 4);
    }

    /**
     * DataSegmentLength.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return bytes, without padding
     */
    public static int dataSegmentLength(ByteBuffer header, int at) {
        return Fields.u24(header, at + 5);
    }

    /**
     * LUN, if the PDU has one.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return see {@link org.lunarsan.iscsi.wire.Lun}
     */
    public static long lun(ByteBuffer header, int at) {
        return Fields.i64(header, at + 8);
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
     * Target Transfer Tag, if the PDU has one.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int targetTransferTag(ByteBuffer header, int at) {
        return Fields.i32(header, at + 20);
    }

    /**
     * StatSN of a PDU from the target.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int statSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 24);
    }

    /**
     * ExpCmdSN of a PDU from the target.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int expCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 28);
    }

    /**
     * MaxCmdSN of a PDU from the target.
     *
     * @param header the buffer
     * @param at where the header begins
     * @return the field
     */
    public static int maxCmdSn(ByteBuffer header, int at) {
        return Fields.i32(header, at + 32);
    }

    /** Zeroes a header in place. */
    static void zero(ByteBuffer header, int at) {
        for (int offset = 0; offset < HEADER_BYTES; offset += Long.BYTES) {
            Fields.putI64(header, at + offset, 0);
        }
    }

    /** Zeroes the header at the position and moves past it; returns its index. */
    static int clear(ByteBuffer out) {
        int at = advance(out);
        zero(out, at);
        return at;
    }

    /** Moves the position past a header; returns its index. */
    static int advance(ByteBuffer header) {
        int at = header.position();
        header.position(at + HEADER_BYTES);
        return at;
    }
}

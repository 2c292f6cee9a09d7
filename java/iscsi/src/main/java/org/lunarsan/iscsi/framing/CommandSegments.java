package org.lunarsan.iscsi.framing;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.lunarsan.iscsi.pdu.ScsiCommandView;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The content of the Additional Header Segments of a SCSI Command. RFC 7143 §11.2.2.
 *
 * <p>AHSLength comes from the peer and is checked against the segment, TotalAHSLength and the
 * limits of its type before anything is read.
 *
 * <p>Threads: immutable.
 */
public final class CommandSegments {
    /** The longest CDB: a variable-length CDB has 8 bytes and at most 252 more. */
    public static final int CDB_BYTES_MAX = 260;

    /** Means "no segment of this type". */
    public static final int NO_READ_LENGTH = -1;

    private static final int TYPE_EXTENDED_CDB = 1;
    private static final int TYPE_BIDIRECTIONAL_READ = 2;
    private static final int TYPE_MASK = 0x3f;
    /** Length of AHSLength and AHSType, which AHSLength does not count. */
    private static final int PREFIX_BYTES = 3;

    private byte[] extendedCdb = new byte[0];
    private long expectedReadBytes = NO_READ_LENGTH;

    private CommandSegments() {
    }

    /**
     * Decodes all segments of a SCSI Command.
     *
     * @param ahs the segments, from the position to the limit; its position stays
     * @return the content
     * @throws AhsViolation for an invalid length, a reserved type, a type that occurs twice
     */
    public static CommandSegments decode(ByteBuffer ahs) throws AhsViolation {
        CommandSegments found = new CommandSegments();
        int at = ahs.position();
        while (at < ahs.limit()) {
            int left = ahs.limit() - at;
            if (left < PREFIX_BYTES) {
                throw truncated();
            }
            int length = Fields.u16(ahs, at);
            int whole = PREFIX_BYTES + length + Digests.paddingBytes(PREFIX_BYTES + length);
            if (whole > left) {
                throw truncated();
            }
            found.add(Fields.u8(ahs, at + 2) & TYPE_MASK, length, ahs, at + PREFIX_BYTES + 1);
            at += whole;
        }
        return found;
    }

    /** Adds one segment; {@code at} is after the reserved byte of its specific part. */
    private void add(int type, int length, ByteBuffer ahs, int at) throws AhsViolation {
        int extendedMax = CDB_BYTES_MAX - ScsiCommandView.CDB_BYTES;
        switch (type) {
            case TYPE_EXTENDED_CDB -> {
                require(length >= 2 && length - 1 <= extendedMax, type, length);
                once(extendedCdb.length == 0, type);
                extendedCdb = new byte[length - 1];
                ahs.get(at, extendedCdb);
            }
            case TYPE_BIDIRECTIONAL_READ -> {
                require(length == 1 + Integer.BYTES, type, length);
                once(expectedReadBytes == NO_READ_LENGTH, type);
                expectedReadBytes = Integer.toUnsignedLong(Fields.i32(ahs, at));
            }
            default -> throw new AhsViolation("AHSType " + type + " is reserved");
        }
    }

    /**
     * The CDB from its seventeenth byte.
     *
     * @return the bytes, none if there is no such segment
     */
    public byte[] extendedCdb() {
        return extendedCdb.clone();
    }

    /**
     * Bidirectional Read Expected Data Transfer Length.
     *
     * @return bytes, or {@link #NO_READ_LENGTH}
     */
    public long expectedReadBytes() {
        return expectedReadBytes;
    }

    /**
     * Encodes the segments that a command needs in addition to its header; nothing in the usual
     * case of a CDB of at most 16 bytes.
     *
     * @param cdb at most {@link #CDB_BYTES_MAX} bytes
     * @param expectedReadBytes of a bidirectional command, as the bits of an {@code int};
     *        {@link #NO_READ_LENGTH} for all others
     * @param out destination
     * @return TotalAHSLength in words of four bytes
     */
    public static int encode(byte[] cdb, long expectedReadBytes, ByteBuffer out) {
        int start = out.position();
        int extended = cdb.length - ScsiCommandView.CDB_BYTES;
        if (extended > 0) {
            begin(out, TYPE_EXTENDED_CDB, extended);
            out.put(cdb, ScsiCommandView.CDB_BYTES, extended);
            for (int filler = Digests.paddingBytes(extended); filler > 0; filler--) {
                out.put((byte) 0);
            }
        }
        if (expectedReadBytes != NO_READ_LENGTH) {
            begin(out, TYPE_BIDIRECTIONAL_READ, Integer.BYTES);
            int at = out.position();
            Fields.putI32(out, at, (int) expectedReadBytes);
            out.position(at + Integer.BYTES);
        }
        return (out.position() - start) / 4;
    }

    private static void begin(ByteBuffer out, int type, int specific) {
        int at = out.position();
        Fields.putU16(out, at, specific + 1);
        Fields.putU16(out, at + 2, type << 8);
        out.position(at + PREFIX_BYTES + 1);
    }

    private static void require(boolean fits, int type, int length) throws AhsViolation {
        if (!fits) {
            throw new AhsViolation("AHSLength " + length + " with AHSType " + type);
        }
    }

    private static void once(boolean first, int type) throws AhsViolation {
        if (!first) {
            throw new AhsViolation("two additional header segments of AHSType " + type);
        }
    }

    private static AhsViolation truncated() {
        return new AhsViolation("an additional header segment goes past TotalAHSLength");
    }

    @Override
    public String toString() {
        return "CommandSegments(cdb=" + Arrays.toString(extendedCdb)
                + ", read=" + expectedReadBytes + ")";
    }
}

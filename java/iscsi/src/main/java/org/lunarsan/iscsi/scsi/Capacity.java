package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Size and block lengths of a unit. SBC-3 §5.16, §5.17.
 *
 * <p>Threads: immutable.
 *
 * @param blockCount number of logical blocks; times {@code blockBytes} it fits a {@code long}
 * @param blockBytes length of a logical block, a power of two
 * @param physicalBlockBytes length of a physical block
 * @param isThin logical block provisioning is in use
 * @param unmappedReadsZeroes blocks that are not mapped read as zeroes
 * @param isWholeStory false if there are more blocks than READ CAPACITY (10) can report
 */
public record Capacity(long blockCount, int blockBytes, long physicalBlockBytes, boolean isThin,
        boolean unmappedReadsZeroes, boolean isWholeStory) {
    /** Shortest logical block that is accepted. */
    public static final int BLOCK_BYTES_MIN = 512;

    /** Longest logical block that is accepted. */
    public static final int BLOCK_BYTES_MAX = 1 << 20;

    private static final int LAST_LBA_10_MAX = -1;
    private static final int THIN = 0x8000;
    private static final int READS_ZEROES = 0x4000;

    /**
     * Decodes the answer to {@link Cdb#readCapacity16}.
     *
     * @param data the answer, from the position to the limit
     * @return the capacity
     * @throws ScsiDataException when it is not valid
     */
    public static Capacity decode16(ByteBuffer data) throws ScsiDataException {
        int at = data.position();
        // SBC-2 units answer 12 bytes; missing fields are 0.
        require(data.remaining() >= 12, "READ CAPACITY (16) has a truncated answer");
        int blockBytes = blockBytes(Fields.i32(data, at + 8));
        long count = Fields.i64(data, at) + 1;
        // Sizes are counted in bytes, and must fit.
        require(count > 0 && count <= Long.MAX_VALUE / blockBytes,
                "READ CAPACITY (16) reports an impossible size");
        boolean complete = data.remaining() >= 16;
        int exponent = complete ? Fields.u8(data, at + 13) & 0x0f : 0;
        int provisioning = complete ? Fields.u16(data, at + 14) : 0;
        return new Capacity(count, blockBytes, (long) blockBytes << exponent,
                (provisioning & THIN) != 0, (provisioning & READS_ZEROES) != 0, true);
    }

    /**
     * Decodes the answer to {@link Cdb#readCapacity10}.
     *
     * @param data the answer, from the position to the limit
     * @return the capacity
     * @throws ScsiDataException when it is not valid
     */
    public static Capacity decode10(ByteBuffer data) throws ScsiDataException {
        int at = data.position();
        require(data.remaining() >= Cdb.CAPACITY_10_BYTES,
                "READ CAPACITY (10) has a truncated answer");
        int last = Fields.i32(data, at);
        int blockBytes = blockBytes(Fields.i32(data, at + 4));
        return new Capacity(Integer.toUnsignedLong(last) + 1, blockBytes, blockBytes, false, false,
                last != LAST_LBA_10_MAX);
    }

    private static int blockBytes(int bytes) throws ScsiDataException {
        boolean sound = bytes >= BLOCK_BYTES_MIN && bytes <= BLOCK_BYTES_MAX
                && Integer.bitCount(bytes) == 1;
        require(sound, "a logical block of " + Integer.toUnsignedString(bytes) + " bytes");
        return bytes;
    }

    private static void require(boolean sound, String what) throws ScsiDataException {
        if (!sound) {
            throw new ScsiDataException(what);
        }
    }
}

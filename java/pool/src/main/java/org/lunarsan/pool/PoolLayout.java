package org.lunarsan.pool;

import org.lunarsan.device.Device;

/**
 * Layout of a member: a label, two intent pages, data, and a second label.
 *
 * <p>Immutable and thread-safe.
 *
 * @param blockSize bytes of a block
 * @param blockCount blocks of the member
 */
record PoolLayout(int blockSize, long blockCount) {
    /** Offset of the data; the space before it has room for later versions. */
    static final int FRONT_BYTES = 1 << 20;

    /** Position of the two pages that are written in turn. */
    private static final int INTENT_OFFSET = 64 << 10;

    private static final int INTENT_DISTANCE = 64 << 10;

    static PoolLayout of(Device device) {
        return new PoolLayout(device.blockSize(), device.blockCount());
    }

    long dataStart() {
        return FRONT_BYTES / blockSize;
    }

    /**
     * Returns the number of data blocks for which the member has room; not positive: it is too
     * small.
     */
    long dataBlocksMax() {
        return blockCount - dataStart() - PoolLabel.BYTES / blockSize;
    }

    /** Returns the first block of the label at the beginning (0) or at the end (1). */
    long label(int copy) {
        return copy == 0 ? 0 : blockCount - PoolLabel.BYTES / blockSize;
    }

    long intentPage(int slot) {
        return (INTENT_OFFSET + (long) slot * INTENT_DISTANCE) / blockSize;
    }

    static long regions(long dataBlocks, long regionBlocks) {
        return (dataBlocks - 1) / regionBlocks + 1;
    }

    /**
     * Returns the smallest power of two, from 64 KiB on, for which an intent page covers all
     * regions.
     */
    static long regionBlocks(int blockSize, long dataBlocks) {
        long blocks = (64 << 10) / blockSize;
        while (regions(dataBlocks, blocks) > IntentPage.REGIONS_MAX) {
            blocks *= 2;
        }
        return blocks;
    }
}

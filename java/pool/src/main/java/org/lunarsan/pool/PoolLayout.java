package org.lunarsan.pool;

import org.lunarsan.device.Device;

/**
 * Where on a member what lies: a label, two intent pages, data, and a label again. A value; for any
 * thread.
 *
 * @param blockSize bytes of a block
 * @param blockCount blocks of the member
 */
record PoolLayout(int blockSize, long blockCount) {
    /** Data begins here; before it there is room for what later versions may need. */
    static final int FRONT_BYTES = 1 << 20;

    /** The two pages that are written in turn. */
    private static final int INTENT_OFFSET = 64 << 10;

    private static final int INTENT_DISTANCE = 64 << 10;

    static PoolLayout of(Device device) {
        return new PoolLayout(device.blockSize(), device.blockCount());
    }

    long dataStart() {
        return FRONT_BYTES / blockSize;
    }

    /** How many blocks of data the member could hold; not positive: it is too small. */
    long dataBlocksMax() {
        return blockCount - dataStart() - PoolLabel.BYTES / blockSize;
    }

    /** The first block of a label: of the one at the beginning, or of the one at the end. */
    long label(int copy) {
        return copy == 0 ? 0 : blockCount - PoolLabel.BYTES / blockSize;
    }

    long intentPage(int slot) {
        return (INTENT_OFFSET + (long) slot * INTENT_DISTANCE) / blockSize;
    }

    static long regions(long dataBlocks, long regionBlocks) {
        return (dataBlocks - 1) / regionBlocks + 1;
    }

    /** The smallest power of two, from 64 KiB on, of which a page of intents has room for all. */
    static long regionBlocks(int blockSize, long dataBlocks) {
        long blocks = (64 << 10) / blockSize;
        while (regions(dataBlocks, blocks) > IntentPage.REGIONS_MAX) {
            blocks *= 2;
        }
        return blocks;
    }
}

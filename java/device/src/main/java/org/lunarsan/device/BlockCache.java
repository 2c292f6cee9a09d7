package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The most recently used blocks, with stamps that detect whether a block has changed since it was
 * read or written.
 *
 * <p>Thread-safe: blocks are spread over shards, each behind its own lock. In a shard, blocks
 * share counters: the number of changes that have begun or ended, and the number of pending ones.
 * Bytes may be kept only if no other change began, ran or ended since they were read or sent; a
 * change of another block that shares the counter only prevents a block from being kept.
 */
final class BlockCache {
    private static final int SHARDS = 16;
    private static final int COUNTERS = 64;

    /** Returned by {@link #beginWrite} when another change is pending: never a valid stamp. */
    private static final long NEVER = -1;

    private final int blockSize;
    private final Shard[] shards = new Shard[SHARDS];
    private final LongAdder visited = new LongAdder();

    BlockCache(int blockSize, long blocksMax) {
        this.blockSize = blockSize;
        for (int index = 0; index < SHARDS; index++) {
            // The first shards get the remainder, so that even a single block is kept.
            shards[index] = new Shard(blocksMax / SHARDS + (index < blocksMax % SHARDS ? 1 : 0));
        }
    }

    /** One part of the blocks. */
    private static final class Shard extends ReentrantLock {
        private static final long serialVersionUID = 1L;

        /** In order of use, the least recently used first. */
        final transient LinkedHashMap<Long, byte[]> blocks = new LinkedHashMap<>(16, 0.75f, true);
        final long blocksMax;
        final long[] changes = new long[COUNTERS];
        final int[] underWay = new int[COUNTERS];

        Shard(long blocksMax) {
            this.blocksMax = blocksMax;
        }

        void put(long address, ByteBuffer from, int blockSize) {
            if (blocksMax == 0) {
                return;
            }
            // Remove the block while it is filled: the caller's memory may be gone.
            byte[] block = blocks.remove(address);
            if (block == null) {
                // The array of the evicted block is reused for the new one.
                block = blocks.size() < blocksMax ? new byte[blockSize] : removeOldest();
            }
            from.get(from.position(), block);
            blocks.put(address, block);
        }

        private byte[] removeOldest() {
            Map.Entry<Long, byte[]> oldest = blocks.pollFirstEntry();
            return oldest.getValue();
        }
    }

    /** Copies a block if it is kept; else returns false. */
    boolean get(long address, ByteBuffer into) {
        Shard shard = shard(address);
        shard.lock();
        try {
            byte[] block = shard.blocks.get(address);
            if (block == null) {
                return false;
            }
            into.put(block);
            return true;
        } finally {
            shard.unlock();
        }
    }

    /** Returns a stamp; call before a block is read from the device. */
    long stamp(long address) {
        Shard shard = shard(address);
        shard.lock();
        try {
            int counter = counter(address);
            return shard.underWay[counter] > 0 ? NEVER : shard.changes[counter];
        } finally {
            shard.unlock();
        }
    }

    /** Keeps a block that was read, if nothing changed since the stamp was taken. */
    void putRead(long address, ByteBuffer block, long stamp) {
        Shard shard = shard(address);
        shard.lock();
        try {
            if (shard.changes[counter(address)] == stamp) {
                shard.put(address, block, blockSize);
            }
        } finally {
            shard.unlock();
        }
    }

    /** Begins a write of a block; pass the stamp to {@link #endWrite}. */
    long beginWrite(long address) {
        Shard shard = shard(address);
        shard.lock();
        try {
            int counter = counter(address);
            shard.blocks.remove(address);
            shard.changes[counter]++;
            return ++shard.underWay[counter] > 1 ? NEVER : shard.changes[counter];
        } finally {
            shard.unlock();
        }
    }

    /** Ends a write; {@code block} is null when it failed. */
    void endWrite(long address, ByteBuffer block, long stamp) {
        Shard shard = shard(address);
        shard.lock();
        try {
            int counter = counter(address);
            boolean alone = shard.changes[counter] == stamp;
            shard.changes[counter]++;
            shard.underWay[counter]--;
            if (alone && block != null) {
                shard.put(address, block, blockSize);
            } else {
                shard.blocks.remove(address);
            }
        } finally {
            shard.unlock();
        }
    }

    /** Begins an unmap, which may have any length, and so counts as a change of every block. */
    void beginUnmap(long address, long count) {
        for (Shard shard : shards) {
            shard.lock();
            try {
                for (int counter = 0; counter < COUNTERS; counter++) {
                    shard.changes[counter]++;
                    shard.underWay[counter]++;
                }
            } finally {
                shard.unlock();
            }
        }
        drop(address, count);
    }

    /** Ends an unmap. None of its blocks was kept meanwhile. */
    void endUnmap() {
        for (Shard shard : shards) {
            shard.lock();
            try {
                for (int counter = 0; counter < COUNTERS; counter++) {
                    shard.changes[counter]++;
                    shard.underWay[counter]--;
                }
            } finally {
                shard.unlock();
            }
        }
    }

    /** Drops all blocks, and prevents pending changes and reads from keeping theirs. */
    void forget() {
        for (Shard shard : shards) {
            shard.lock();
            try {
                shard.blocks.clear();
                for (int counter = 0; counter < COUNTERS; counter++) {
                    shard.changes[counter]++;
                }
            } finally {
                shard.unlock();
            }
        }
    }

    /**
     * Drops a range: looks up each of its blocks, or iterates over all kept ones if those are
     * fewer.
     */
    private void drop(long address, long count) {
        if (count <= size()) {
            for (long block = address; block < address + count; block++) {
                Shard shard = shard(block);
                shard.lock();
                try {
                    shard.blocks.remove(block);
                } finally {
                    shard.unlock();
                }
            }
            visited.add(count);
            return;
        }
        for (Shard shard : shards) {
            shard.lock();
            try {
                visited.add(shard.blocks.size());
                shard.blocks.keySet().removeIf(
                        block -> block >= address && block - address < count);
            } finally {
                shard.unlock();
            }
        }
    }

    /** Number of kept blocks. */
    long size() {
        long size = 0;
        for (Shard shard : shards) {
            shard.lock();
            size += shard.blocks.size();
            shard.unlock();
        }
        return size;
    }

    /** Number of blocks that unmaps have visited. */
    long visited() {
        return visited.sum();
    }

    private Shard shard(long address) {
        return shards[(int) (mix(address) >>> 60)];
    }

    private static int counter(long address) {
        return (int) (mix(address) >>> 32) & (COUNTERS - 1);
    }

    /** Spreads neighbouring blocks: the multiplier is 2^64 divided by the golden ratio. */
    private static long mix(long address) {
        return address * 0x9E3779B97F4A7C15L;
    }
}

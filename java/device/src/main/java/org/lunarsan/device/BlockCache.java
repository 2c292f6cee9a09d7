package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The blocks used last, and how to know that a block is still what was read or written.
 *
 * <p>For any thread: blocks are spread over shards, each behind its own lock. In a shard, blocks
 * share counters: how many changes of them have begun or ended, and how many are under way. Bytes
 * may be kept only if no other change began, ran or ended since they were read or sent; a stranger
 * that shares the counter only costs a chance to keep a block.
 */
final class BlockCache {
    private static final int SHARDS = 16;
    private static final int COUNTERS = 64;

    /** What {@link #beginWrite} says when another change is under way: never a valid stamp. */
    private static final long NEVER = -1;

    private final int blockSize;
    private final Shard[] shards = new Shard[SHARDS];
    private final LongAdder visited = new LongAdder();

    BlockCache(int blockSize, long blocksMax) {
        this.blockSize = blockSize;
        for (int index = 0; index < SHARDS; index++) {
            // The rest goes to the first ones, so that even one block is kept somewhere.
            shards[index] = new Shard(blocksMax / SHARDS + (index < blocksMax % SHARDS ? 1 : 0));
        }
    }

    /** One part of the blocks. */
    private static final class Shard extends ReentrantLock {
        private static final long serialVersionUID = 1L;

        /** In order of use, the one used longest ago first. */
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
            // Not kept while it is filled: the caller's memory may be gone.
            byte[] block = blocks.remove(address);
            if (block == null) {
                // The room of the one that leaves serves the one that comes.
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

    /** Copies a block that is kept; false when it is not. */
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

    /** Taken before a block is read from the device. */
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

    /** Keeps what was read, if nothing changed since the stamp was taken. */
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

    /** A write of a block is about to be sent; the stamp goes to {@link #endWrite}. */
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

    /** A write has ended; null when it failed. */
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

    /** An unmap may have any length, so it counts as a change of every block. */
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

    /** An unmap has ended. Nothing of its blocks was kept meanwhile. */
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

    /** Drops all, also what changes and reads that are under way would keep. */
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

    /** Drops a range: looks for each of its blocks, or at all that are kept if those are less. */
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

    /** How many blocks are kept. */
    long size() {
        long size = 0;
        for (Shard shard : shards) {
            shard.lock();
            size += shard.blocks.size();
            shard.unlock();
        }
        return size;
    }

    /** How many blocks unmaps have looked at or for. */
    long visited() {
        return visited.sum();
    }

    private Shard shard(long address) {
        return shards[(int) (mix(address) >>> 60)];
    }

    private static int counter(long address) {
        return (int) (mix(address) >>> 32) & (COUNTERS - 1);
    }

    /** Spreads neighbours: the multiplier is 2^64 by the golden ratio. */
    private static long mix(long address) {
        return address * 0x9E3779B97F4A7C15L;
    }
}

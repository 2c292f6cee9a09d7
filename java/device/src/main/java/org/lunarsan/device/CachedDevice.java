package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.atomic.LongAdder;

/**
 * Keeps the most recently used blocks in memory, in front of another device. Writes go through: a
 * write that returned has reached the inner device, which determines its durability.
 *
 * <p>A read of blocks that are all kept does no I/O; otherwise one read from the first to the last
 * missing block. Blocks of a write or unmap are kept anew after success, dropped after a failure,
 * and dropped when another write to the same blocks was pending, because the order of both is
 * unknown then.
 *
 * <p>After a failed {@link #flush()}, when the inner device {@linkplain #losses() may have lost}
 * writes, and when {@linkplain #staleReads() reads from it may be stale}, all blocks are dropped:
 * reads return the content of the device.
 *
 * <p>Thread-safe. No other code may write to the inner device: such writes would not be
 * detected. The cache takes at most {@code bytesMax} for blocks and some 100 bytes for each.
 */
public final class CachedDevice extends ForwardingDevice {
    private final long bytesMax;
    private final LongAdder hits = new LongAdder();
    private final LongAdder misses = new LongAdder();
    /** Null until the device is opened. */
    private volatile BlockCache cache;
    /** Losses of the inner device when the cache was last emptied. */
    private volatile long losses;
    /** Stale reads of the inner device at that time. */
    private volatile long staleReads;

    /**
     * Creates an empty cache.
     *
     * @param inner the inner device, closed
     * @param bytesMax limit of the kept blocks in bytes; less than one block keeps nothing
     * @throws IllegalArgumentException when it is negative
     */
    public CachedDevice(Device inner, long bytesMax) {
        super(inner);
        if (bytesMax < 0) {
            throw new IllegalArgumentException("a cache of " + bytesMax + " bytes");
        }
        this.bytesMax = bytesMax;
    }

    @Override
    public void open() throws DeviceException {
        super.open();
        losses = inner().losses();
        staleReads = inner().staleReads();
        cache = new BlockCache(blockSize(), bytesMax / blockSize());
    }

    @Override
    public void close() throws DeviceException {
        synchronized (this) {
            cache = null;
        }
        super.close();
    }

    /**
     * Number of blocks that were read from memory.
     *
     * @return the count since this object was created
     */
    public long hits() {
        return hits.sum();
    }

    /**
     * Number of blocks that were read from the inner device.
     *
     * @return the count since this object was created
     */
    public long misses() {
        return misses.sum();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        BlockCache kept = openCache(Operation.READ, address);
        int blocks = shape().checkBuffer(name(), Operation.READ, address, buffer);
        int size = blockSize();
        ByteBuffer into = buffer.duplicate();
        int first = 0;
        while (first < blocks && kept.get(address + first, slice(into, first, 1, size))) {
            first++;
        }
        int end = blocks;
        while (end > first && kept.get(address + end - 1, slice(into, end - 1, 1, size))) {
            end--;
        }
        hits.add(blocks - (end - first));
        misses.add(end - first);
        if (first < end) {
            fetch(kept, address + first, slice(into, first, end - first, size));
        }
        buffer.position(buffer.limit());
    }

    private void fetch(BlockCache kept, long address, ByteBuffer into) throws DeviceException {
        int size = blockSize();
        int blocks = into.remaining() / size;
        long[] stamps = new long[blocks];
        for (int index = 0; index < blocks; index++) {
            stamps[index] = kept.stamp(address + index);
        }
        inner().read(address, into.duplicate());
        for (int index = 0; index < blocks; index++) {
            kept.putRead(address + index, slice(into, index, 1, size), stamps[index]);
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        BlockCache kept = openCache(Operation.WRITE, address);
        int blocks = shape().checkBuffer(name(), Operation.WRITE, address, buffer);
        ByteBuffer from = buffer.duplicate();
        long[] stamps = begin(kept, address, blocks);
        boolean written = false;
        try {
            inner().write(address, buffer);
            written = true;
        } finally {
            int size = blockSize();
            for (int index = 0; index < blocks; index++) {
                ByteBuffer block = written ? slice(from, index, 1, size) : null;
                endWrite(kept, address + index, block, stamps[index]);
            }
        }
    }

    /**
     * Ends the record of a write, and keeps its block. If the caller has freed the memory
     * meanwhile, the block is not kept; the write is done all the same.
     */
    private static void endWrite(BlockCache kept, long address, ByteBuffer block, long stamp) {
        try {
            kept.endWrite(address, block, stamp);
        } catch (RuntimeException unusable) {
            // The write was counted as ended, and the block dropped.
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        BlockCache kept = openCache(Operation.UNMAP, address);
        shape().checkRange(name(), Operation.UNMAP, address, blocks);
        kept.beginUnmap(address, blocks);
        try {
            inner().unmap(address, blocks);
        } finally {
            kept.endUnmap();
        }
    }

    @Override
    public void flush() throws DeviceException {
        boolean flushed = false;
        try {
            super.flush();
            flushed = true;
        } finally {
            if (!flushed) {
                forget();
            }
        }
    }

    /**
     * Drops all blocks, which may not be on the device. Pending changes stay recorded: blocks read
     * beside them are not kept.
     */
    private synchronized void forget() {
        if (cache != null) {
            losses = inner().losses();
            staleReads = inner().staleReads();
            cache.forget();
        }
    }

    private static long[] begin(BlockCache kept, long address, int blocks) {
        long[] stamps = new long[blocks];
        for (int index = 0; index < blocks; index++) {
            stamps[index] = kept.beginWrite(address + index);
        }
        return stamps;
    }

    private BlockCache openCache(Operation operation, long address) throws DeviceClosedException {
        if (cache != null
                && (inner().losses() != losses || inner().staleReads() != staleReads)) {
            forget();
        }
        BlockCache kept = cache;
        if (kept == null) {
            throw Lifecycle.closed(name(), operation, address, 0);
        }
        return kept;
    }

    private Geometry shape() {
        return new Geometry(blockSize(), blockCount());
    }

    private static ByteBuffer slice(ByteBuffer all, int block, int blocks, int size) {
        return all.slice(all.position() + block * size, blocks * size);
    }
}

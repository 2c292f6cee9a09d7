package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * A device in memory: sparse, of up to 2<sup>63</sup>-1 bytes. Its content lasts as long as the
 * object, also while the device is closed.
 *
 * <p>Thread-safe. Memory is allocated in chunks of 64 KiB when they are written, and freed by
 * {@link #unmap(long, long)} of whole chunks. A block is never torn, not even by reads. Flushes do
 * nothing.
 */
public final class MemoryDevice implements Device {
    private static final int CHUNK_BYTES = 64 << 10;

    private static final int LOCKS = 64;

    private static final byte[] ZEROES = new byte[CHUNK_BYTES];

    private static final AtomicLong NUMBER = new AtomicLong();

    private final String name;
    private final Geometry geometry;
    private final Lifecycle life;
    private final ConcurrentHashMap<Long, byte[]> chunks = new ConcurrentHashMap<>();
    /** Locks by chunk number, held while a chunk is found, changed or dropped. */
    private final ReadWriteLock[] locks = new ReadWriteLock[LOCKS];

    /**
     * Creates a device of zeroes, which is closed and takes no memory yet.
     *
     * @param blockSize bytes of a block: 512, 1024, 2048 or 4096
     * @param blockCount number of blocks, at least 1
     * @throws IllegalArgumentException for another shape
     */
    public MemoryDevice(int blockSize, long blockCount) {
        this("mem" + NUMBER.getAndIncrement(), new Geometry(blockSize, blockCount));
    }

    /**
     * Creates a device of zeroes with a name.
     *
     * @param name name for messages
     * @param geometry its shape
     */
    public MemoryDevice(String name, Geometry geometry) {
        this.name = Objects.requireNonNull(name, "name");
        this.geometry = Objects.requireNonNull(geometry, "geometry");
        life = new Lifecycle(name);
        for (int index = 0; index < LOCKS; index++) {
            locks[index] = new ReentrantReadWriteLock();
        }
    }

    /**
     * Returns a copy of the current content. It may contain some blocks of concurrent writes.
     *
     * @return a closed device of the same shape and name
     */
    public MemoryDevice snapshot() {
        MemoryDevice copy = new MemoryDevice(name, geometry);
        for (Long number : chunks.keySet()) {
            ReadWriteLock lock = lock(number);
            lock.readLock().lock();
            try {
                byte[] chunk = chunks.get(number);
                if (chunk != null) {
                    copy.chunks.put(number, chunk.clone());
                }
            } finally {
                lock.readLock().unlock();
            }
        }
        return copy;
    }

    /**
     * Memory of the written chunks.
     *
     * @return bytes
     */
    public long allocatedBytes() {
        return chunks.mappingCount() * CHUNK_BYTES;
    }

    @Override
    public void open() throws DeviceException {
        life.open();
    }

    @Override
    public void close() {
        life.close();
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public int blockSize() {
        return geometry.blockSize();
    }

    @Override
    public long blockCount() {
        return geometry.blockCount();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        check(Operation.READ, address, buffer);
        ByteBuffer into = buffer.duplicate();
        long offset = geometry.offset(address);
        while (into.hasRemaining()) {
            int bytes = piece(offset, into.remaining());
            ReadWriteLock lock = lock(offset / CHUNK_BYTES);
            lock.readLock().lock();
            try {
                byte[] chunk = chunks.get(offset / CHUNK_BYTES);
                int at = chunk == null ? 0 : (int) (offset % CHUNK_BYTES);
                into.put(chunk == null ? ZEROES : chunk, at, bytes);
            } finally {
                lock.readLock().unlock();
            }
            offset += bytes;
        }
        buffer.position(buffer.limit());
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        check(Operation.WRITE, address, buffer);
        ByteBuffer from = buffer.duplicate();
        long offset = geometry.offset(address);
        while (from.hasRemaining()) {
            int bytes = piece(offset, from.remaining());
            long number = offset / CHUNK_BYTES;
            ReadWriteLock lock = lock(number);
            lock.writeLock().lock();
            try {
                byte[] chunk = chunks.computeIfAbsent(number, absent -> new byte[CHUNK_BYTES]);
                from.get(chunk, (int) (offset % CHUNK_BYTES), bytes);
            } finally {
                lock.writeLock().unlock();
            }
            offset += bytes;
        }
        buffer.position(buffer.limit());
    }

    @Override
    public void flush() throws DeviceException {
        life.check(Operation.FLUSH);
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        life.check(Operation.UNMAP, address, blocks);
        geometry.checkRange(name, Operation.UNMAP, address, blocks);
        if (blocks == 0) {
            return;
        }
        long begin = geometry.offset(address);
        long end = begin + geometry.offset(blocks);
        long first = begin / CHUNK_BYTES;
        long last = (end - 1) / CHUNK_BYTES;
        // A range may have more chunks than were ever written.
        if (last - first < chunks.mappingCount()) {
            for (long number = first; number <= last; number++) {
                clear(number, begin, end);
            }
            return;
        }
        for (Map.Entry<Long, byte[]> entry : chunks.entrySet()) {
            if (entry.getKey() >= first && entry.getKey() <= last) {
                clear(entry.getKey(), begin, end);
            }
        }
    }

    /** Zeroes the bytes between two offsets in one chunk. */
    private void clear(long number, long begin, long end) {
        long base = number * CHUNK_BYTES;
        int from = (int) Math.max(begin - base, 0);
        int to = (int) Math.min(end - base, CHUNK_BYTES);
        ReadWriteLock lock = lock(number);
        lock.writeLock().lock();
        try {
            if (to - from == CHUNK_BYTES) {
                chunks.remove(number);
                return;
            }
            byte[] chunk = chunks.get(number);
            if (chunk != null) {
                System.arraycopy(ZEROES, 0, chunk, from, to - from);
            }
        } finally {
            lock.writeLock().unlock();
        }
    }

    private void check(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        life.check(operation, address, buffer.remaining() / geometry.blockSize());
        geometry.checkBuffer(name, operation, address, buffer);
    }

    private static int piece(long offset, int remaining) {
        return Math.min(remaining, CHUNK_BYTES - (int) (offset % CHUNK_BYTES));
    }

    private ReadWriteLock lock(long number) {
        return locks[(int) (number % LOCKS)];
    }

    @Override
    public String toString() {
        return name + " (" + geometry.blockCount() + " blocks of " + geometry.blockSize() + ")";
    }
}

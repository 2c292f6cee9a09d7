package org.lunarsan.device;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Objects;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A file, or a file of the operating system (a partition), as a device.
 *
 * <p><b>Shape.</b> The size is the file's when it is opened; it must be a whole number of blocks.
 * {@link #create(Path, int, long)} creates a sparse file.
 *
 * <p><b>One opener.</b> An open device holds a lock on the file, exclusive or, when it is
 * read-only, shared. The lock excludes other processes that lock the file, as this class does.
 *
 * <p><b>Durability.</b> A write is in the cache of the system until {@link #flush()}, which is
 * {@link FileChannel#force(boolean)}. After a failed flush, writes and flushes throw
 * {@link PoisonedException} until the device is opened again.
 *
 * <p><b>Unmap</b> writes zeroes: the JDK cannot punch holes. It takes as long as a write and frees
 * no space.
 *
 * <p>Thread-safe. The JDK closes a channel when a thread that uses it is interrupted; this class
 * opens it again and repeats the interrupted operation, so interrupts are kept for the caller but
 * fail nothing on an open device. An interrupted thread cannot create or open one.
 */
public final class FileDevice implements Device {
    /**
     * Limit of the bytes passed to the system at once: the JDK copies heap buffers through memory
     * outside of the heap that it then keeps.
     */
    private static final int TRANSFER_BYTES_MAX = 1 << 20;

    private static final ByteBuffer ZEROES =
            ByteBuffer.allocateDirect(256 << 10).asReadOnlyBuffer();

    private final FileOpener opener;
    private final String name;
    private final int blockSize;
    private final boolean readOnly;
    /** Guards opening and closing, also reopening after an interrupt. */
    private final ReentrantLock opening = new ReentrantLock();
    /** Serializes flushes: no flush begins between the failure of another one and the poisoning. */
    private final ReentrantLock flushing = new ReentrantLock();
    /** Null while the device is closed. */
    private volatile FileChannel channel;
    /** Number of openings: an operation that began before does not continue in a later opening. */
    private volatile int openings;
    private volatile Geometry geometry;
    private volatile boolean poisoned;
    /** The implementation of a flush; replaced in tests. */
    Work force = file -> file.force(false);

    private FileDevice(Path path, int blockSize, boolean readOnly) {
        this.opener = new FileOpener(path, blockSize, readOnly);
        this.name = path.toString();
        this.blockSize = blockSize;
        this.readOnly = readOnly;
    }

    /**
     * Creates a device of a file to read and write.
     *
     * @param path an existing file
     * @param blockSize bytes of a block: 512, 1024, 2048 or 4096
     * @return the device, closed
     */
    public static FileDevice of(Path path, int blockSize) {
        return new FileDevice(path, blockSize, false);
    }

    /**
     * Creates a device of a file to read.
     *
     * @param path an existing file
     * @param blockSize bytes of a block: 512, 1024, 2048 or 4096
     * @return the device, closed
     */
    public static FileDevice readOnly(Path path, int blockSize) {
        return new FileDevice(path, blockSize, true);
    }

    /**
     * Creates a new file of zeroes, sparse if the file system supports it. If this fails, no file
     * is left.
     *
     * @param path a file that does not exist yet
     * @param blockSize bytes of a block: 512, 1024, 2048 or 4096
     * @param blockCount number of blocks
     * @return the device, closed
     * @throws DeviceException when the shape is impossible, the file exists or cannot be created
     */
    public static FileDevice create(Path path, int blockSize, long blockCount)
            throws DeviceException {
        FileDevice device = new FileDevice(path, blockSize, false);
        device.opener.create(blockCount);
        return device;
    }

    @Override
    public void open() throws DeviceException {
        opening.lock();
        try {
            if (channel != null) {
                throw Lifecycle.alreadyOpen(name);
            }
            opener.claim();
            FileChannel opened = null;
            try {
                opened = opener.openAndLock();
                geometry = opener.shapeOf(opened);
                poisoned = false;
                openings++;
                channel = opened;
            } finally {
                if (channel == null) {
                    if (opened != null) {
                        FileOpener.closeQuietly(opened);
                    }
                    opener.unclaim();
                }
            }
        } finally {
            opening.unlock();
        }
    }

    @Override
    public void close() throws DeviceException {
        opening.lock();
        try {
            FileChannel open = channel;
            channel = null;
            if (open != null) {
                try {
                    open.close();
                } finally {
                    opener.unclaim();
                }
            }
        } catch (IOException failure) {
            throw new DeviceException(name, Operation.CLOSE, failure.toString(), failure);
        } finally {
            opening.unlock();
        }
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public int blockSize() {
        return shape().blockSize();
    }

    @Override
    public long blockCount() {
        return shape().blockCount();
    }

    @Override
    public boolean isReadOnly() {
        return readOnly;
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        check(Operation.READ, address, buffer);
        long offset = geometry.offset(address);
        run(Operation.READ, address, buffer.remaining() / blockSize, file -> {
            ByteBuffer into = buffer.duplicate();
            while (into.hasRemaining()) {
                ByteBuffer piece = piece(into);
                long at = offset + into.position() - buffer.position();
                int read = file.read(piece, at);
                if (read < 0) {
                    throw new IOException("the file ends at byte " + file.size());
                }
                into.position(into.position() + read);
            }
        });
        buffer.position(buffer.limit());
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        check(Operation.WRITE, address, buffer);
        int blocks = buffer.remaining() / blockSize;
        checkWritable(Operation.WRITE, address, blocks);
        long offset = geometry.offset(address);
        run(Operation.WRITE, address, blocks, file -> {
            ByteBuffer from = buffer.duplicate();
            while (from.hasRemaining()) {
                long at = offset + from.position() - buffer.position();
                from.position(from.position() + file.write(piece(from), at));
            }
        });
        buffer.position(buffer.limit());
    }

    @Override
    public void flush() throws DeviceException {
        checkOpen(Operation.FLUSH, DeviceException.NO_ADDRESS, 0);
        if (readOnly) {
            return;
        }
        flushing.lock();
        try {
            // The system reports a failure once: another flush would succeed.
            checkPoison(Operation.FLUSH, DeviceException.NO_ADDRESS, 0);
            run(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, force);
        } catch (PoisonedException exception) {
            throw exception;
        } catch (DeviceClosedException closed) {
            throw closed;
        } catch (DeviceException failed) {
            poisoned = true;
            throw failed;
        } finally {
            flushing.unlock();
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        checkOpen(Operation.UNMAP, address, blocks);
        geometry.checkRange(name, Operation.UNMAP, address, blocks);
        checkWritable(Operation.UNMAP, address, blocks);
        long begin = geometry.offset(address);
        long end = begin + geometry.offset(blocks);
        run(Operation.UNMAP, address, blocks, file -> {
            for (long at = begin; at < end; ) {
                int bytes = (int) Math.min(end - at, ZEROES.capacity());
                at += file.write(ZEROES.slice(0, bytes), at);
            }
        });
    }

    /** An operation on the channel, which may be repeated from the start. */
    interface Work {
        void run(FileChannel file) throws IOException;
    }

    private void run(Operation operation, long address, long blocks, Work work)
            throws DeviceException {
        boolean interrupted = Thread.interrupted();
        int began = openings;
        try {
            while (true) {
                FileChannel file = channel;
                if (file == null || openings != began) {
                    throw Lifecycle.closed(name, operation, address, blocks);
                }
                try {
                    work.run(file);
                    return;
                } catch (ClosedByInterruptException exception) {
                    interrupted |= Thread.interrupted();
                    openAgain(file);
                } catch (ClosedChannelException exception) {
                    openAgain(file);
                } catch (IOException failure) {
                    throw failure(operation, address, blocks, failure);
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /**
     * Replaces a channel that an interrupt closed, unless that was done or the device is closed.
     */
    private void openAgain(FileChannel lost) throws DeviceException {
        opening.lock();
        try {
            if (channel == lost) {
                // Waits for the thread that closes it, since it holds its lock until then.
                FileOpener.closeQuietly(lost);
                channel = opener.openAndLock();
            }
        } finally {
            opening.unlock();
        }
    }

    private DeviceException failure(
            Operation operation, long address, long blocks, IOException failure) {
        // The JDK has no exception type for this, only the message of the system.
        String words = String.valueOf(failure.getMessage());
        String what = failure.toString();
        boolean full = words.contains("No space left") || words.contains("not enough space")
                || words.contains("quota exceeded");
        return full
                ? new NoSpaceException(name, operation, address, blocks, what, failure)
                : new MediumException(name, operation, address, blocks, what, failure);
    }

    private void check(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        checkOpen(operation, address, buffer.remaining() / Math.max(blockSize, 1));
        geometry.checkBuffer(name, operation, address, buffer);
    }

    private void checkOpen(Operation operation, long address, long blocks)
            throws DeviceClosedException {
        if (channel == null) {
            throw Lifecycle.closed(name, operation, address, blocks);
        }
    }

    private void checkWritable(Operation operation, long address, long blocks)
            throws DeviceException {
        if (readOnly) {
            String what = "it was opened read-only";
            throw new ReadOnlyDeviceException(name, operation, address, blocks, what, null);
        }
        checkPoison(operation, address, blocks);
    }

    private void checkPoison(Operation operation, long address, long blocks)
            throws PoisonedException {
        if (poisoned) {
            String what = "an earlier flush failed: writes since the last successful one may be"
                    + " lost; close the device, check its data and open it again";
            throw new PoisonedException(name, operation, address, blocks, what, null);
        }
    }

    private Geometry shape() {
        Geometry shape = geometry;
        if (shape == null) {
            throw Lifecycle.neverOpened(name);
        }
        return shape;
    }

    private static ByteBuffer piece(ByteBuffer all) {
        return all.slice(all.position(), Math.min(all.remaining(), TRANSFER_BYTES_MAX));
    }

    @Override
    public String toString() {
        return name;
    }
}

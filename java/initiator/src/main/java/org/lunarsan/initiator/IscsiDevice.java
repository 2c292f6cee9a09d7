package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.Operation;
import org.lunarsan.device.ReadOnlyDeviceException;

/**
 * A LUN of an iSCSI target as a device.
 *
 * <p>Long transfers are cut into pieces of 256 KiB, or less if the target accepts less in one
 * command, and the pieces run concurrently. When the session is lost, unanswered commands are sent
 * again in the next one, up to {@link IscsiOptions.Builder#recoveryTime}; callers see only a delay.
 * Before any command is sent in a new session, the device checks by designators and block length
 * that the unit is the one that was opened, and that it has not shrunk. Another unit, or one that
 * has shrunk, is never used, and calls fail with {@link org.lunarsan.device.ChangedException}. A
 * unit that has grown continues with the number of blocks it had when it was opened.
 *
 * <p>A buffer belongs to the device until the call returns or its future is complete, whether the
 * device, {@link CompletableFuture#orTimeout} or other code completes the future. If other code
 * completes the future of a write, the write continues with a copy of its data and may still be
 * executed; later writes to its blocks wait until it has ended. The data of such a read are
 * discarded. The state of a future that depends on the returned one says nothing about the buffer.
 * Memory of an arena of {@code java.lang.foreign} that can be closed, and memory of a mapped file,
 * is copied before it is written. A read into memory that is closed meanwhile fails; only calls
 * that wait can read into memory of a confined arena.
 *
 * <p>If the target has a volatile write cache, a restart may lose writes that were acknowledged but
 * not flushed. The next flush then fails once, as do all flushes that ran meanwhile: a caller that
 * gets {@link org.lunarsan.device.PoisonedException} has to repeat its writes since the last flush
 * that succeeded. The loss is reported once, to one caller. Users that share a device have to share
 * the report; {@link #losses()} counts losses for each of them.
 *
 * <p>Threads: any, platform or virtual. Calls of an interrupted thread do their work and keep the
 * interrupt status, except those that open: they end soon with
 * {@link IscsiException.Kind#INTERRUPTED} and leave nothing open. Futures complete in the thread
 * that reads the connection: dependent actions may use the calls of this device that return
 * futures, and must not wait there; a call that waits is refused there with
 * {@link IllegalStateException}. Concurrent calls share connections and system calls.
 */
public final class IscsiDevice implements AsyncDevice {
    private final IscsiUrl url;
    private final IscsiOptions options;
    private final String name;
    /**
     * Same value at each opening: session reinstatement (RFC 7143 §6.3.5) then ends the commands
     * that were pending when the device was closed, before any newer command is sent.
     */
    private final long isid = TargetConnector.randomIsid();
    private final ReentrantLock life = new ReentrantLock();
    /** Null while the device is closed. */
    private volatile Disk disk;
    /** Shape at the last opening. */
    private volatile UnitLimits shape;

    private IscsiDevice(IscsiUrl url, IscsiOptions options) {
        this.url = url;
        this.options = options;
        name = url.toString();
    }

    /**
     * Opens the LUN that a URL names.
     *
     * @param url {@code iscsi://[user@]host[:port]/target/lun}
     * @return the open device
     * @throws IscsiUrlException when the URL is not valid, or names no LUN
     * @throws DeviceException when the device cannot be opened
     */
    public static IscsiDevice open(String url) throws DeviceException {
        return open(url, IscsiOptions.defaults());
    }

    /**
     * Same as {@link #open(String)}, with options.
     *
     * @param url {@code iscsi://[user@]host[:port]/target/lun}
     * @param options options of the initiator
     * @return the open device
     * @throws IscsiUrlException when the URL is not valid, or names no LUN
     * @throws DeviceException when the device cannot be opened
     */
    public static IscsiDevice open(String url, IscsiOptions options) throws DeviceException {
        Objects.requireNonNull(url, "url");
        IscsiDevice device = of(IscsiUrl.parse(url), options);
        device.open();
        return device;
    }

    /**
     * Returns a device that is not open yet.
     *
     * @param url the URL of a LUN
     * @param options options of the initiator
     * @return the closed device
     * @throws IscsiUrlException when the URL contains no LUN
     */
    public static IscsiDevice of(IscsiUrl url, IscsiOptions options) {
        Objects.requireNonNull(url, "url");
        Objects.requireNonNull(options, "options");
        if (url.unit().isEmpty()) {
            throw new IscsiUrlException("the URL contains no LUN", "write iscsi://HOST/TARGET/LUN");
        }
        return new IscsiDevice(url, options);
    }

    @Override
    public void open() throws DeviceException {
        refuseToWaitInReader();
        try {
            life.lockInterruptibly();
        } catch (InterruptedException exception) {
            Thread.currentThread().interrupt();
            throw Failures.toDeviceException(name, Operation.OPEN, DeviceException.NO_ADDRESS, 0,
                    Failure.interrupted());
        }
        try {
            if (disk != null) {
                throw new DeviceOpenException(name, Operation.OPEN, "the device is already open;"
                        + " one owner opens a device and lends it to others", null);
            }
            Disk opened = Disk.open(url, options, isid);
            shape = opened.limits();
            disk = opened;
        } catch (Failure failure) {
            throw Failures.toDeviceException(
                    name, Operation.OPEN, DeviceException.NO_ADDRESS, 0, failure);
        } finally {
            life.unlock();
        }
    }

    @Override
    public void close() {
        if (disk != null) {
            // Check before any state changes: otherwise no later call could close the disk.
            refuseToWaitInReader();
        }
        life.lock();
        try {
            Disk was = disk;
            disk = null;
            if (was != null) {
                was.close();
            }
        } finally {
            life.unlock();
        }
    }

    @Override
    public String name() {
        return name;
    }

    /**
     * The URL of the device.
     *
     * @return the URL
     */
    public IscsiUrl url() {
        return url;
    }

    @Override
    public int blockSize() {
        return known().geometry().blockSize();
    }

    @Override
    public long blockCount() {
        return known().geometry().blockCount();
    }

    @Override
    public boolean unmapReadsZeroes() {
        return known().unmapping() == UnitLimits.Unmapping.ZEROES;
    }

    @Override
    public long losses() {
        Disk open = disk;
        return open == null ? 0 : open.losses();
    }

    @Override
    public boolean isReadOnly() {
        Disk open = disk;
        return open != null && open.mode().isWriteProtected();
    }

    /**
     * True when acknowledged writes may still be in a volatile cache (WCE).
     *
     * @return false when the device is closed
     */
    public boolean hasWriteCache() {
        Disk open = disk;
        return open != null && open.mode().hasWriteCache();
    }

    /**
     * Number of connections that are logged in.
     *
     * @return 0 while the session is lost, or the device is closed
     */
    public int connections() {
        Disk open = disk;
        Session session = open == null ? null : open.supervisor().now();
        return session == null ? 0 : session.connections();
    }

    /** True when writes to these blocks wait for a write of unknown outcome. */
    boolean isUncertain(long address, long blocks) {
        Disk open = disk;
        return open != null
                && open.uncertainWrites().overlaps(address, blocks, UncertainWrites.NEW);
    }

    private UnitLimits known() {
        UnitLimits known = shape;
        if (known == null) {
            throw new IllegalStateException(name
                    + " was never opened: its size is not known yet");
        }
        return known;
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        transfer(Operation.READ, address, buffer);
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        transfer(Operation.WRITE, address, buffer);
    }

    private void transfer(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Disk open = disk;
        int blocks = check(open, operation, address, buffer);
        if (blocks == 0) {
            return;
        }
        refuseToWaitInReader();
        boolean write = operation == Operation.WRITE;
        if (write ? !CallerBuffers.isLasting(buffer) : CallerBuffers.isConfined(buffer)) {
            transferCopy(operation, address, buffer);
            return;
        }
        if (blocks > open.limits().pieceBlocks()) {
            Pieces.execute(open, write, address, buffer, blocks);
            return;
        }
        int limit = buffer.limit();
        try {
            open.transfer(write, address, blocks, buffer, buffer.position());
        } catch (Failure failure) {
            throw Failures.toDeviceException(name, operation, address, blocks, failure);
        }
        buffer.limit(limit).position(limit);
    }

    /**
     * Transfers through a copy, for a buffer that our threads may not use or that may become
     * unreadable.
     */
    private void transferCopy(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        if (operation == Operation.WRITE) {
            transfer(operation, address, CallerBuffers.copyOf(buffer));
            buffer.position(buffer.limit());
        } else {
            ByteBuffer own = ByteBuffer.allocate(buffer.remaining());
            transfer(operation, address, own);
            buffer.put(own.flip());
        }
    }

    /** Rejects invalid arguments; returns the number of blocks. */
    private int check(Disk open, Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        if (open == null) {
            long blocks = buffer.remaining() / (shape == null ? 1 : blockSize());
            throw new DeviceClosedException(name, operation, address, blocks,
                    "the device is not open", null);
        }
        int blocks = open.limits().geometry().checkBuffer(name, operation, address, buffer);
        CallerBuffers.touch(buffer);
        if (operation == Operation.WRITE) {
            refuseReadOnly(open, operation, address, blocks);
        }
        return blocks;
    }

    private void refuseReadOnly(Disk open, Operation operation, long address, long blocks)
            throws ReadOnlyDeviceException {
        if (open.mode().isWriteProtected()) {
            throw new ReadOnlyDeviceException(name, operation, address, blocks,
                    "the unit is write-protected", null);
        }
    }

    private static void refuseToWaitInReader() {
        if (ReaderThread.isCurrent()) {
            throw new IllegalStateException("a blocking call in the thread that reads the"
                    + " answers would deadlock: use calls that return futures, or thenApplyAsync");
        }
    }

    @Override
    public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
        return transferAsync(Operation.READ, address, buffer);
    }

    @Override
    public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
        return transferAsync(Operation.WRITE, address, buffer);
    }

    private CompletableFuture<Void> transferAsync(Operation operation, long address,
            ByteBuffer buffer) {
        Disk open = disk;
        int blocks;
        try {
            blocks = check(open, operation, address, buffer);
        } catch (DeviceException | ReadOnlyBufferException | IllegalStateException
                | WrongThreadException refused) {
            return CompletableFuture.failedFuture(refused);
        }
        if (blocks == 0) {
            return CompletableFuture.completedFuture(null);
        }
        boolean write = operation == Operation.WRITE;
        if (!write && CallerBuffers.isConfined(buffer)) {
            return CompletableFuture.failedFuture(new IllegalArgumentException("a buffer of a"
                    + " confined arena cannot be read into by another thread: use a shared arena,"
                    + " or the blocking call"));
        }
        ByteBuffer data = write && !CallerBuffers.isLasting(buffer)
                ? CallerBuffers.copyOf(buffer) : buffer;
        return blocks > open.limits().pieceBlocks()
                ? Pieces.whole(open, write, address, blocks, data, buffer)
                : new Transfer(open, write, address, blocks, data, buffer).begin();
    }

    @Override
    public void flush() throws DeviceException {
        Disk open = disk;
        if (open == null) {
            throw new DeviceClosedException(name, Operation.FLUSH, DeviceException.NO_ADDRESS, 0,
                    "the device is not open", null);
        }
        refuseToWaitInReader();
        try {
            open.flush();
        } catch (Failure failure) {
            throw Failures.toDeviceException(
                    name, Operation.FLUSH, DeviceException.NO_ADDRESS, 0, failure);
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        Disk open = disk;
        if (open == null) {
            throw new DeviceClosedException(name, Operation.UNMAP, address, blocks,
                    "the device is not open", null);
        }
        open.limits().geometry().checkRange(name, Operation.UNMAP, address, blocks);
        refuseReadOnly(open, Operation.UNMAP, address, blocks);
        refuseToWaitInReader();
        try {
            open.unmap(address, blocks);
        } catch (Failure failure) {
            throw Failures.toDeviceException(name, Operation.UNMAP, address, blocks, failure);
        }
    }

    @Override
    public CompletableFuture<Void> flushAsync() {
        return inThread(this::flush);
    }

    @Override
    public CompletableFuture<Void> unmapAsync(long address, long blocks) {
        return inThread(() -> unmap(address, blocks));
    }

    /** A call that runs in a thread of its own and completes a future. */
    private interface Work {
        void run() throws DeviceException;
    }

    private static CompletableFuture<Void> inThread(Work work) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread.ofVirtual().name("iscsi").start(() -> {
            try {
                work.run();
                done.complete(null);
            } catch (DeviceException | RuntimeException | Error failure) {
                done.completeExceptionally(failure);
            }
        });
        return done;
    }

    @Override
    public String toString() {
        return name;
    }

    /**
     * The geometry of the device.
     *
     * @return block size and count
     * @throws IllegalStateException before the first {@link #open()}
     */
    public Geometry geometry() {
        return known().geometry();
    }
}

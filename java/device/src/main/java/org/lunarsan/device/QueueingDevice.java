package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A queue in front of what moves blocks: the abstract device that the jSCSI paper plans for its
 * version 2.0. An implementation supplies open, close and the four transfers; this class supplies
 * order, joining, reading ahead, and the bounds.
 *
 * <p><b>Order.</b> Requests take effect as if done in the order in which they came, where that can
 * be seen: a read finds every write that came before it, of overlapping writes the later one wins,
 * and a flush covers every write that came before it, also when nobody has waited for any of them.
 * Others overtake each other.
 *
 * <p><b>Joining.</b> While all transfers are busy, waiting reads of neighbouring blocks become one
 * transfer, and so do writes. Nothing waits in the hope of a neighbour. When a joined transfer
 * fails, each request is done alone, so that a bad block fails those who asked for it.
 *
 * <p><b>Reading ahead.</b> See {@link QueueOptions#prefetchBytes()}. A failure to read ahead is
 * told to nobody, the blocks are read when they are asked for. When the device
 * {@linkplain #losses() may have lost} writes, {@linkplain #doubtedReads() reads are doubted}, or a
 * flush failed, what was read ahead is forgotten.
 *
 * <p><b>Buffers.</b> A transfer that is given up before it begins is not done. The four transfers
 * get the buffers of callers that wait, and otherwise memory of this class: the data of
 * {@link #readAsync} and {@link #writeAsync} is copied once, unless an {@link AsyncDevice} is
 * inside, which gives up buffers when it is asked to.
 *
 * <p><b>Threads.</b> For any thread. Transfers run on virtual threads, at most
 * {@link QueueOptions#depth()} at once. Callers wait when {@link QueueOptions#requestsMax()}
 * requests are unfinished. Closing fails what has not begun.
 */
public abstract class QueueingDevice implements AsyncDevice {
    private final String name;
    private final QueueOptions options;
    private final Semaphore room;
    private final ReentrantLock lock = new ReentrantLock();

    // Guarded by the lock.
    private RequestQueue queue;
    private Prefetcher prefetcher;
    /** Of the device, when what is read ahead was looked at last. */
    private long lossesSeen;
    /** Likewise. */
    private long doubtedReadsSeen;
    private int workers;
    private boolean opening;

    private volatile Geometry geometry;
    private volatile boolean open;

    /**
     * A closed device.
     *
     * @param name what to call it in messages
     * @param options how to queue
     */
    protected QueueingDevice(String name, QueueOptions options) {
        this.name = Objects.requireNonNull(name, "name");
        this.options = Objects.requireNonNull(options, "options");
        room = new Semaphore(options.requestsMax());
    }

    /**
     * Opens what moves the blocks.
     *
     * @return its shape
     * @throws DeviceException when it cannot be opened
     */
    protected abstract Geometry openTransfers() throws DeviceException;

    /**
     * Closes what moves the blocks. Transfers under way end soon, with or without success.
     *
     * @throws DeviceException when it fails
     */
    protected abstract void closeTransfers() throws DeviceException;

    /**
     * Reads blocks. Called by several threads.
     *
     * @param address the first block, checked
     * @param into what remains of it is filled; its position may be changed
     * @throws DeviceException when it fails
     */
    protected abstract void readBlocks(long address, ByteBuffer into) throws DeviceException;

    /**
     * Writes blocks. Called by several threads, never for overlapping blocks.
     *
     * @param address the first block, checked
     * @param from what remains of it is written; its position may be changed
     * @throws DeviceException when it fails
     */
    protected abstract void writeBlocks(long address, ByteBuffer from) throws DeviceException;

    /**
     * Makes all writes durable whose calls returned before. No other write is under way.
     *
     * @throws DeviceException when it fails
     */
    protected abstract void flushBlocks() throws DeviceException;

    /**
     * Unmaps blocks.
     *
     * @param address the first block, checked
     * @param blocks how many, at least 1
     * @throws DeviceException when it fails
     */
    protected abstract void unmapBlocks(long address, long blocks) throws DeviceException;

    /** What moves the blocks, if callers' buffers may be lent to it; null: blocking calls do. */
    AsyncDevice asyncInside() {
        return null;
    }

    @Override
    public void open() throws DeviceException {
        lock.lock();
        try {
            if (open || opening) {
                throw Lifecycle.alreadyOpen(name);
            }
            opening = true;
        } finally {
            lock.unlock();
        }
        Geometry shape = null;
        try {
            shape = openTransfers();
        } finally {
            lock.lock();
            opening = false;
            if (shape != null) {
                geometry = shape;
                queue = new RequestQueue();
                prefetcher = new Prefetcher(shape, options.prefetchBytes());
                lossesSeen = 0;
                doubtedReadsSeen = 0;
                open = true;
            }
            lock.unlock();
        }
    }

    @Override
    public void close() throws DeviceException {
        List<QueuedRequest> waiting;
        lock.lock();
        try {
            if (!open) {
                return;
            }
            open = false;
            waiting = queue.takeWaiting();
        } finally {
            lock.unlock();
        }
        try {
            closeTransfers();
        } finally {
            for (QueuedRequest request : waiting) {
                DeviceException closed = closed(request);
                request.served.forEach(read -> settle(read, closed(read)));
                settle(request, closed);
            }
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
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        LentTransfer.await(submitBuffer(Operation.READ, address, buffer, QueuedRequest::waited));
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        LentTransfer.await(submitBuffer(Operation.WRITE, address, buffer, QueuedRequest::waited));
    }

    @Override
    public void flush() throws DeviceException {
        LentTransfer.await(flushAsync());
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        LentTransfer.await(unmapAsync(address, blocks));
    }

    @Override
    public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
        return submitBuffer(Operation.READ, address, buffer, QueuedRequest::async);
    }

    @Override
    public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
        return submitBuffer(Operation.WRITE, address, buffer, QueuedRequest::async);
    }

    @Override
    public CompletableFuture<Void> flushAsync() {
        return submit(QueuedRequest.plain(Operation.FLUSH, DeviceException.NO_ADDRESS, 0));
    }

    @Override
    public CompletableFuture<Void> unmapAsync(long address, long blocks) {
        QueuedRequest request = QueuedRequest.plain(Operation.UNMAP, address, blocks);
        try {
            checkOpen(request);
            checkWritable(request);
            shape().checkRange(name, Operation.UNMAP, address, blocks);
        } catch (DeviceException refusal) {
            return CompletableFuture.failedFuture(refusal);
        }
        return blocks == 0 ? CompletableFuture.completedFuture(null) : submit(request);
    }

    /** Makes a request with data. */
    private interface Maker {
        QueuedRequest make(Operation operation, long address, long blocks, ByteBuffer buffer);
    }

    private CompletableFuture<Void> submitBuffer(
            Operation operation, long address, ByteBuffer buffer, Maker maker) {
        Objects.requireNonNull(buffer, "buffer");
        QueuedRequest request;
        try {
            long blocks = buffer.remaining() / Geometry.BLOCK_BYTES_MIN;
            checkOpen(QueuedRequest.plain(operation, address, blocks));
            blocks = shape().checkBuffer(name, operation, address, buffer);
            request = maker.make(operation, address, blocks, buffer);
            if (operation == Operation.WRITE) {
                checkWritable(request);
            }
        } catch (DeviceException | ReadOnlyBufferException refusal) {
            return CompletableFuture.failedFuture(refusal);
        }
        return request.blocks == 0 ? CompletableFuture.completedFuture(null) : submit(request);
    }

    private CompletableFuture<Void> submit(QueuedRequest request) {
        room.acquireUninterruptibly();
        // Not behind the lock: a device may wait for itself there.
        boolean prefetches = options.prefetchBytes() > 0 && request.operation == Operation.READ;
        long losses = prefetches ? losses() : 0;
        long doubtedReads = prefetches ? doubtedReads() : 0;
        QueuedRequest segment = null;
        DeviceException refusal = null;
        lock.lock();
        try {
            if (!open) {
                refusal = closed(request);
            } else {
                if (prefetches) {
                    forgetWrong(losses, doubtedReads);
                }
                segment = enqueue(request);
                startWorkers();
            }
        } finally {
            lock.unlock();
        }
        if (refusal != null) {
            settle(request, refusal);
        } else if (segment != null) {
            serve(request, segment);
        }
        return request.done;
    }

    /** What was read ahead may be wrong by what the device counts. With the lock held. */
    private void forgetWrong(long losses, long doubtedReads) {
        if (losses != lossesSeen || doubtedReads != doubtedReadsSeen) {
            lossesSeen = losses;
            doubtedReadsSeen = doubtedReads;
            prefetcher.forget();
        }
    }

    /** What was read ahead and has all blocks of the request; null: the request is queued. */
    private QueuedRequest enqueue(QueuedRequest request) {
        if (prefetcher.isOff() || request.operation == Operation.FLUSH) {
            queue.add(request);
            return null;
        }
        if (request.operation != Operation.READ) {
            prefetcher.drop(request);
            queue.add(request);
            return null;
        }
        QueuedRequest segment = prefetcher.find(request);
        boolean ready = segment != null && segment.complete;
        if (segment != null && !ready) {
            segment.serve(request);
        } else if (!ready) {
            queue.add(request);
        }
        QueuedRequest ahead = prefetcher.note(request);
        if (ahead != null) {
            queue.add(ahead);
        }
        return ready ? segment : null;
    }

    /** Ends a read with what was read ahead; a buffer that cannot be filled fails its own read. */
    private void serve(QueuedRequest read, QueuedRequest segment) {
        Throwable failure = null;
        try {
            read.takeFrom(segment.buffer, segment.address, blockSize());
        } catch (RuntimeException unusable) {
            failure = unusable;
        }
        settle(read, failure);
    }

    /** As many as are allowed and have something to do. With the lock held. */
    private void startWorkers() {
        while (workers < options.depth() && queue.hasReady()) {
            List<QueuedRequest> run = queue.next(joinedBlocksMax());
            workers++;
            Thread.ofVirtual().name("queue of " + name).start(() -> work(run));
        }
    }

    private long joinedBlocksMax() {
        return options.transferBytesMax() / blockSize();
    }

    /** Does a run of requests; then others take over what has become ready. */
    private void work(List<QueuedRequest> run) {
        Outcome[] outcomes = Transfers.run(this, run);
        QueuedRequest ahead = run.getFirst().ahead ? run.getFirst() : null;
        List<QueuedRequest> served = List.of();
        Outcome[] ofServed = {};
        if (ahead != null && outcomes[0].failure() != null) {
            // Before later writes to these blocks may begin.
            served = forget(ahead);
            ofServed = Transfers.each(this, served);
        }
        // Futures complete when this worker no longer counts: what hangs on them may take long.
        lock.lock();
        try {
            if (ahead != null && outcomes[0].failure() == null) {
                ahead.complete = true;
                served = ahead.served;
                ahead.served = List.of();
            }
            if (run.getFirst().operation == Operation.FLUSH && outcomes[0].failure() != null) {
                // The device may not have what was written before, and read ahead since.
                prefetcher.forget();
            }
            run.forEach(queue::finished);
            workers--;
            if (open) {
                startWorkers();
            }
        } finally {
            lock.unlock();
        }
        finish(run, outcomes);
        if (ahead != null && outcomes[0].failure() == null) {
            served.forEach(read -> serve(read, ahead));
        } else {
            finish(served, ofServed);
        }
    }

    private List<QueuedRequest> forget(QueuedRequest ahead) {
        lock.lock();
        try {
            prefetcher.failed(ahead);
            List<QueuedRequest> served = ahead.served;
            ahead.served = List.of();
            return served;
        } finally {
            lock.unlock();
        }
    }

    private void finish(List<QueuedRequest> requests, Outcome[] outcomes) {
        for (int index = 0; index < requests.size(); index++) {
            settle(requests.get(index), outcomes[index].failure());
        }
    }

    /** How a transfer ended: a failure, or null. */
    record Outcome(Throwable failure) {}

    private void settle(QueuedRequest request, Throwable failure) {
        if (request.ahead) {
            return;
        }
        room.release();
        request.end(failure);
    }

    private void checkOpen(QueuedRequest request) throws DeviceClosedException {
        if (!open) {
            throw closed(request);
        }
    }

    private void checkWritable(QueuedRequest request) throws ReadOnlyDeviceException {
        if (isReadOnly()) {
            throw new ReadOnlyDeviceException(name, request.operation, request.address,
                    request.blocks, "the device takes no writes", null);
        }
    }

    private DeviceClosedException closed(QueuedRequest request) {
        return Lifecycle.closed(name, request.operation, request.address, request.blocks);
    }

    private Geometry shape() {
        Geometry shape = geometry;
        if (shape == null) {
            throw Lifecycle.neverOpened(name);
        }
        return shape;
    }
}

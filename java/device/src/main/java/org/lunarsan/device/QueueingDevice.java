package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A queue in front of an implementation that transfers blocks: the abstract device that the jSCSI
 * paper plans for its version 2.0. An implementation supplies open, close and the four transfers;
 * this class supplies order, joining, prefetching, and limits.
 *
 * <p><b>Order.</b> Requests take effect as if done in the order of their arrival, as far as that is
 * observable: a read finds every write that came before it, of overlapping writes the later one
 * wins, and a flush covers every write that came before it, even if no caller has waited for any of
 * them. Other requests may overtake each other.
 *
 * <p><b>Joining.</b> While all transfers are busy, waiting reads of neighbouring blocks become one
 * transfer, and so do writes. No request waits for a possible neighbour. If a joined transfer
 * fails, each request is done alone, so that a bad block fails only the requests for it.
 *
 * <p><b>Prefetching.</b> See {@link QueueOptions#prefetchBytes()}. A failed prefetch is not
 * reported; the blocks are read when they are requested. When the device
 * {@linkplain #losses() may have lost} writes, {@linkplain #staleReads() reads may be stale}, or a
 * flush failed, prefetched blocks are dropped.
 *
 * <p><b>Buffers.</b> A transfer that is abandoned before it begins is skipped. The four transfers
 * get the buffers of callers that wait, and otherwise memory of this class: the data of
 * {@link #readAsync} and {@link #writeAsync} is copied once, unless the inner device is an
 * {@link AsyncDevice}, which releases buffers on request.
 *
 * <p><b>Threads.</b> Thread-safe. Transfers run on virtual threads, at most
 * {@link QueueOptions#depth()} at once. Callers wait when {@link QueueOptions#requestsMax()}
 * requests are unfinished. Closing fails requests that have not begun.
 */
public abstract class QueueingDevice implements AsyncDevice {
    private final String name;
    private final QueueOptions options;
    private final Semaphore room;
    private final ReentrantLock lock = new ReentrantLock();

    // Guarded by the lock.
    private RequestQueue queue;
    private Prefetcher prefetcher;
    /** Losses of the device when the prefetched blocks were last checked. */
    private long lossesSeen;
    /** Stale reads of the device at that time. */
    private long staleReadsSeen;
    private int workers;
    private boolean opening;

    private volatile Geometry geometry;
    private volatile boolean open;

    /**
     * Creates a closed device.
     *
     * @param name name for messages
     * @param options options of the queue
     */
    protected QueueingDevice(String name, QueueOptions options) {
        this.name = Objects.requireNonNull(name, "name");
        this.options = Objects.requireNonNull(options, "options");
        room = new Semaphore(options.requestsMax());
    }

    /**
     * Opens the implementation.
     *
     * @return its shape
     * @throws DeviceException when it cannot be opened
     */
    protected abstract Geometry openTransfers() throws DeviceException;

    /**
     * Closes the implementation. Pending transfers end soon, with or without success.
     *
     * @throws DeviceException when it fails
     */
    protected abstract void closeTransfers() throws DeviceException;

    /**
     * Reads blocks. Called by several threads.
     *
     * @param address the first block, checked
     * @param into its remaining bytes are filled; its position may be changed
     * @throws DeviceException when it fails
     */
    protected abstract void readBlocks(long address, ByteBuffer into) throws DeviceException;

    /**
     * Writes blocks. Called by several threads, never for overlapping blocks.
     *
     * @param address the first block, checked
     * @param from its remaining bytes are written; its position may be changed
     * @throws DeviceException when it fails
     */
    protected abstract void writeBlocks(long address, ByteBuffer from) throws DeviceException;

    /**
     * Makes all writes durable whose calls returned before. No other write is pending.
     *
     * @throws DeviceException when it fails
     */
    protected abstract void flushBlocks() throws DeviceException;

    /**
     * Unmaps blocks.
     *
     * @param address the first block, checked
     * @param blocks number of blocks, at least 1
     * @throws DeviceException when it fails
     */
    protected abstract void unmapBlocks(long address, long blocks) throws DeviceException;

    /**
     * Returns the inner device if callers' buffers may be lent to it; null: blocking calls are
     * used.
     */
    AsyncDevice innerAsync() {
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
                staleReadsSeen = 0;
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
                request.served.forEach(read -> complete(read, closed(read)));
                complete(request, closed);
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
        LentTransfer.await(submitBuffer(Operation.READ, address, buffer, QueuedRequest::blocking));
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        LentTransfer.await(submitBuffer(Operation.WRITE, address, buffer, QueuedRequest::blocking));
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
        return submit(QueuedRequest.withoutData(Operation.FLUSH, DeviceException.NO_ADDRESS, 0));
    }

    @Override
    public CompletableFuture<Void> unmapAsync(long address, long blocks) {
        QueuedRequest request = QueuedRequest.withoutData(Operation.UNMAP, address, blocks);
        try {
            checkOpen(request);
            checkWritable(request);
            shape().checkRange(name, Operation.UNMAP, address, blocks);
        } catch (DeviceException refusal) {
            return CompletableFuture.failedFuture(refusal);
        }
        return blocks == 0 ? CompletableFuture.completedFuture(null) : submit(request);
    }

    /** Creates a request with data. */
    private interface RequestFactory {
        QueuedRequest make(Operation operation, long address, long blocks, ByteBuffer buffer);
    }

    private CompletableFuture<Void> submitBuffer(
            Operation operation, long address, ByteBuffer buffer, RequestFactory factory) {
        Objects.requireNonNull(buffer, "buffer");
        QueuedRequest request;
        try {
            long blocks = buffer.remaining() / Geometry.BLOCK_BYTES_MIN;
            checkOpen(QueuedRequest.withoutData(operation, address, blocks));
            blocks = shape().checkBuffer(name, operation, address, buffer);
            request = factory.make(operation, address, blocks, buffer);
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
        // Called without the lock: a device may wait for its own queue here.
        boolean prefetches = options.prefetchBytes() > 0 && request.operation == Operation.READ;
        long losses = prefetches ? losses() : 0;
        long staleReads = prefetches ? staleReads() : 0;
        QueuedRequest segment = null;
        DeviceException refusal = null;
        lock.lock();
        try {
            if (!open) {
                refusal = closed(request);
            } else {
                if (prefetches) {
                    dropStalePrefetches(losses, staleReads);
                }
                segment = enqueue(request);
                startWorkers();
            }
        } finally {
            lock.unlock();
        }
        if (refusal != null) {
            complete(request, refusal);
        } else if (segment != null) {
            serve(request, segment);
        }
        return request.done;
    }

    /** Drops prefetched blocks that may be wrong according to the counts. With the lock held. */
    private void dropStalePrefetches(long losses, long staleReads) {
        if (losses != lossesSeen || staleReads != staleReadsSeen) {
            lossesSeen = losses;
            staleReadsSeen = staleReads;
            prefetcher.forget();
        }
    }

    /** Returns the prefetched segment for the request; null: the request is queued. */
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
        QueuedRequest prefetch = prefetcher.note(request);
        if (prefetch != null) {
            queue.add(prefetch);
        }
        return ready ? segment : null;
    }

    /** Ends a read from prefetched data; a buffer that cannot be filled fails only its own read. */
    private void serve(QueuedRequest read, QueuedRequest segment) {
        Throwable failure = null;
        try {
            read.takeFrom(segment.buffer, segment.address, blockSize());
        } catch (RuntimeException unusable) {
            failure = unusable;
        }
        complete(read, failure);
    }

    /** Starts workers, as many as allowed and needed. With the lock held. */
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

    /** Does a run of requests; then starts workers for requests that have become ready. */
    private void work(List<QueuedRequest> run) {
        Outcome[] outcomes = Transfers.run(this, run);
        QueuedRequest prefetch = run.getFirst().isPrefetch ? run.getFirst() : null;
        List<QueuedRequest> served = List.of();
        Outcome[] ofServed = {};
        if (prefetch != null && outcomes[0].failure() != null) {
            // Before later writes to these blocks may begin.
            served = forget(prefetch);
            ofServed = Transfers.each(this, served);
        }
        // Complete futures when this worker no longer counts: dependent actions may take long.
        lock.lock();
        try {
            if (prefetch != null && outcomes[0].failure() == null) {
                prefetch.complete = true;
                served = prefetch.served;
                prefetch.served = List.of();
            }
            if (run.getFirst().operation == Operation.FLUSH && outcomes[0].failure() != null) {
                // The device may not have earlier writes that were prefetched since.
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
        if (prefetch != null && outcomes[0].failure() == null) {
            served.forEach(read -> serve(read, prefetch));
        } else {
            finish(served, ofServed);
        }
    }

    private List<QueuedRequest> forget(QueuedRequest prefetch) {
        lock.lock();
        try {
            prefetcher.failed(prefetch);
            List<QueuedRequest> served = prefetch.served;
            prefetch.served = List.of();
            return served;
        } finally {
            lock.unlock();
        }
    }

    private void finish(List<QueuedRequest> requests, Outcome[] outcomes) {
        for (int index = 0; index < requests.size(); index++) {
            complete(requests.get(index), outcomes[index].failure());
        }
    }

    /** Result of a transfer: a failure, or null. */
    record Outcome(Throwable failure) {}

    private void complete(QueuedRequest request, Throwable failure) {
        if (request.isPrefetch) {
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
                    request.blocks, "the device is read-only", null);
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

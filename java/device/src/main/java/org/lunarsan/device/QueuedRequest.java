package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A request in the queue. Its mutable state is guarded by the lock of the queue, except the buffer,
 * which belongs to the thread that works on the request.
 */
final class QueuedRequest {
    final Operation operation;
    final long address;
    final long blocks;
    /** Buffer of the caller; null without data. */
    final ByteBuffer buffer;
    /** The future of a transfer that its caller may abandon; null: no other buffer is needed. */
    final LentTransfer transfer;
    final CompletableFuture<Void> done;
    /** Set for a prefetch by the device itself. */
    final boolean isPrefetch;

    /** Number of earlier requests that have to end first. */
    int blockers;
    /** Requests that wait for this one. */
    List<QueuedRequest> dependents = List.of();
    boolean started;
    /** Set when the data of a prefetch is available. */
    boolean complete;
    /** Reads that are served from this prefetch. */
    List<QueuedRequest> served = List.of();

    private QueuedRequest(Operation operation, long address, long blocks, ByteBuffer buffer,
            LentTransfer transfer, boolean isPrefetch) {
        this.operation = operation;
        this.address = address;
        this.blocks = blocks;
        this.buffer = buffer;
        this.transfer = transfer;
        done = transfer == null ? new CompletableFuture<>() : transfer;
        this.isPrefetch = isPrefetch;
    }

    /** Creates a request without data. */
    static QueuedRequest withoutData(Operation operation, long address, long blocks) {
        return new QueuedRequest(operation, address, blocks, null, null, false);
    }

    /** Creates a read or write whose caller has the future, and may complete it at any time. */
    static QueuedRequest async(Operation operation, long address, long blocks, ByteBuffer buffer) {
        return new QueuedRequest(
                operation, address, blocks, buffer, new LentTransfer(buffer), false);
    }

    /** Creates a read or write whose caller waits until it has ended. */
    static QueuedRequest blocking(
            Operation operation, long address, long blocks, ByteBuffer buffer) {
        return new QueuedRequest(operation, address, blocks, buffer, null, false);
    }

    /** Creates a read into memory of the device. */
    static QueuedRequest prefetch(long address, long blocks, ByteBuffer buffer) {
        return new QueuedRequest(Operation.READ, address, blocks, buffer, null, true);
    }

    long end() {
        return address + blocks;
    }

    boolean covers(QueuedRequest other) {
        return address <= other.address && other.end() <= end();
    }

    /** True if a later request has to wait for this one. */
    boolean goesBefore(QueuedRequest later) {
        if (operation == Operation.READ && later.operation == Operation.READ) {
            return false;
        }
        if (operation == Operation.FLUSH || later.operation == Operation.FLUSH) {
            return operation != Operation.READ && later.operation != Operation.READ;
        }
        return address < later.end() && later.address < end();
    }

    void addDependent(QueuedRequest later) {
        if (dependents.isEmpty()) {
            dependents = new ArrayList<>();
        }
        dependents.add(later);
        later.blockers++;
    }

    void serve(QueuedRequest read) {
        if (served.isEmpty()) {
            served = new ArrayList<>();
        }
        served.add(read);
    }

    /** Ends the request with a failure, or null. */
    void end(Throwable failure) {
        if (transfer != null) {
            transfer.end(failure);
        } else if (failure != null) {
            done.completeExceptionally(failure);
        } else {
            if (buffer != null) {
                buffer.position(buffer.limit());
            }
            done.complete(null);
        }
    }

    /** Copies the data of a write; false when it was abandoned. */
    boolean copyTo(ByteBuffer data) {
        if (transfer != null) {
            return transfer.copyTo(data);
        }
        data.put(buffer.duplicate());
        return true;
    }

    /** Copies this request's part of the data read for several requests at once. */
    void takeFrom(ByteBuffer data, long first, int blockSize) {
        int at = Math.toIntExact((address - first) * blockSize);
        ByteBuffer part = data.slice(at, Math.toIntExact(blocks * blockSize));
        if (transfer != null) {
            transfer.fill(part);
        } else {
            buffer.duplicate().put(part);
        }
    }
}

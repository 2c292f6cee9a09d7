package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A request in the queue. Its mutable state is guarded by the lock of the queue, but for the
 * buffer, which belongs to whoever works on the request.
 */
final class QueuedRequest {
    final Operation operation;
    final long address;
    final long blocks;
    /** As the caller gave it; null without data. */
    final ByteBuffer buffer;
    final CompletableFuture<Void> done = new CompletableFuture<>();
    /** Reads ahead: the device asked for it itself. */
    final boolean ahead;

    /** How many earlier ones have to end first. */
    int blockers;
    /** Those that wait for this one. */
    List<QueuedRequest> dependents = List.of();
    boolean started;
    /** Of one that reads ahead: its data is there. */
    boolean complete;
    /** Reads that are served from what this one reads ahead. */
    List<QueuedRequest> served = List.of();

    QueuedRequest(
            Operation operation, long address, long blocks, ByteBuffer buffer, boolean ahead) {
        this.operation = operation;
        this.address = address;
        this.blocks = blocks;
        this.buffer = buffer;
        this.ahead = ahead;
    }

    long end() {
        return address + blocks;
    }

    boolean covers(QueuedRequest other) {
        return address <= other.address && other.end() <= end();
    }

    /** Whether a later request has to wait for this one. */
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

    void succeed() {
        if (buffer != null) {
            buffer.position(buffer.limit());
        }
        done.complete(null);
    }

    /** Copies what was read for several requests at once to this one. */
    void takeFrom(ByteBuffer data, long first, int blockSize) {
        int at = Math.toIntExact((address - first) * blockSize);
        buffer.duplicate().put(data.slice(at, buffer.remaining()));
    }
}

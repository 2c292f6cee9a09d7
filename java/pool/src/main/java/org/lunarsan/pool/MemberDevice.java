package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.Operation;

/**
 * A device during one opening of a pool. After {@link #shut} it passes no calls on: a call that
 * hung while the pool was closed must not reach a device that another user has opened since. For
 * any thread.
 */
final class MemberDevice extends ForwardingDevice {
    /** Time for which closing a pool waits for its members, at each step. */
    static final Duration CLOSE_WAIT = Duration.ofSeconds(10);

    /** The wrapped device; null: it has only blocking calls. */
    private final AsyncDevice async;
    private final SharedFlush flushes = new SharedFlush(this::flushDevice);
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition left = lock.newCondition();
    /**
     * Number of pending calls, by the epoch in which they began; guarded, like all below, by the
     * lock.
     */
    private final int[] inside = new int[2];
    /** Number of those calls that change blocks. */
    private int insideChanges;
    /** Epoch of calls that begin now. */
    private int turn;
    /** Set while a thread waits for the calls of the other epoch. */
    private boolean draining;
    private boolean shut;
    /** Number of changes of blocks that have ended; guarded by the lock. */
    private long changes;
    /** Number of these changes that were made durable; guarded by the lock. */
    private long changesFlushed;

    /** Wraps a device that is open. */
    MemberDevice(Device inner) {
        super(inner);
        async = inner instanceof AsyncDevice able ? able : null;
    }

    boolean isAsync() {
        return async != null;
    }

    /** Refuses all later calls; pending ones continue. */
    void shut() {
        lock.lock();
        shut = true;
        lock.unlock();
    }

    /** Closes the device, and returns when no call is pending. */
    @Override
    public void close() throws DeviceException {
        shut();
        try {
            super.close();
        } finally {
            lock.lock();
            try {
                while (inside[0] + inside[1] > 0) {
                    left.awaitUninterruptibly();
                }
            } finally {
                lock.unlock();
            }
        }
    }

    /** Returns when all calls that are pending now have ended. */
    void awaitPresent() {
        lock.lock();
        try {
            while (draining) {
                left.awaitUninterruptibly();
            }
            draining = true;
            int past = turn;
            turn ^= 1;
            while (inside[past] > 0) {
                left.awaitUninterruptibly();
            }
            draining = false;
            left.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** True when a change of blocks is pending. */
    boolean hasPendingChanges() {
        lock.lock();
        try {
            return insideChanges > 0;
        } finally {
            lock.unlock();
        }
    }

    /** Returns when no change of blocks is pending. The caller prevents new ones. */
    void awaitChanges() {
        lock.lock();
        try {
            while (insideChanges > 0) {
                left.awaitUninterruptibly();
            }
        } finally {
            lock.unlock();
        }
    }

    private static boolean isChange(Operation operation) {
        return operation == Operation.WRITE || operation == Operation.UNMAP;
    }

    /** Counts a call that is about to begin as pending. Returns its epoch, for {@link #leave}. */
    int hold(Operation operation) {
        lock.lock();
        try {
            inside[turn]++;
            if (isChange(operation)) {
                insideChanges++;
            }
            return turn;
        } finally {
            lock.unlock();
        }
    }

    private int enter(Operation operation, long address) throws DeviceClosedException {
        lock.lock();
        try {
            if (shut) {
                throw PoolFailures.closed(name(), operation, address);
            }
            return hold(operation);
        } finally {
            lock.unlock();
        }
    }

    void leave(int began, Operation operation) {
        lock.lock();
        try {
            boolean last = --inside[began] == 0;
            if (isChange(operation)) {
                last |= --insideChanges == 0;
            }
            if (last) {
                left.signalAll();
            }
        } finally {
            lock.unlock();
        }
    }

    /** Counts a change of blocks, successful or failed, before its end is reported. */
    private void leaveChange(int began, Operation operation) {
        lock.lock();
        try {
            changes++;
            leave(began, operation);
        } finally {
            lock.unlock();
        }
    }

    /**
     * Flushes the device, unless it is shut: the flush would consume the report of a loss that is
     * meant for the next user.
     */
    private void flushDevice() throws DeviceException {
        long covered;
        lock.lock();
        try {
            if (shut) {
                throw PoolFailures.closed(name(), Operation.FLUSH, DeviceException.NO_ADDRESS);
            }
            covered = changes;
        } finally {
            lock.unlock();
        }
        super.flush();
        lock.lock();
        try {
            changesFlushed = covered;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Detects whether the device has lost a change that had ended before: afterwards
     * {@link #losses()} counts such a loss. Flushes the device, unless all changes are durable.
     *
     * @throws DeviceException when the flush fails
     */
    void checkLosses() throws DeviceException {
        boolean durable;
        lock.lock();
        try {
            durable = changes == changesFlushed;
        } finally {
            lock.unlock();
        }
        if (!durable) {
            flush();
        }
    }

    /**
     * Counts also failed flushes of all callers: most devices report a loss once, by the next
     * flush.
     */
    @Override
    public long losses() {
        return super.losses() + flushes.failures();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        int began = enter(Operation.READ, address);
        try {
            super.read(address, buffer);
        } finally {
            leave(began, Operation.READ);
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        int began = enter(Operation.WRITE, address);
        try {
            super.write(address, buffer);
        } finally {
            leaveChange(began, Operation.WRITE);
        }
    }

    @Override
    public void flush() throws DeviceException {
        int began = enter(Operation.FLUSH, DeviceException.NO_ADDRESS);
        try {
            flushes.run();
        } finally {
            leave(began, Operation.FLUSH);
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        int began = enter(Operation.UNMAP, address);
        try {
            super.unmap(address, blocks);
        } finally {
            leaveChange(began, Operation.UNMAP);
        }
    }

    /**
     * Begins a read or a write.
     *
     * @return null when the device has only blocking calls
     */
    CompletableFuture<Void> begin(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        return begin(operation, address, buffer, device -> { });
    }

    /**
     * Begins a read or a write; {@code given} receives the future of the device, by which the
     * buffer can be taken back.
     */
    CompletableFuture<Void> begin(Operation operation, long address, ByteBuffer buffer,
            Consumer<CompletableFuture<Void>> given) throws DeviceException {
        if (async == null) {
            return null;
        }
        int began = enter(operation, address);
        CompletableFuture<Void> begun = null;
        try {
            begun = operation == Operation.READ
                    ? async.readAsync(address, buffer)
                    : async.writeAsync(address, buffer);
        } finally {
            if (begun == null) {
                leaveChange(began, operation);
            }
        }
        given.accept(begun);
        return begun.whenComplete((done, thrown) -> leaveChange(began, operation));
    }
}

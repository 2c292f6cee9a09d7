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
 * A device for as long as one opening of a pool has it. Once shut it lets nothing through any more:
 * what hung while the pool was closed must not go on to a device that somebody else has opened
 * since. For any thread.
 */
final class MemberDevice extends ForwardingDevice {
    /** How long a pool that is closed waits for its members, at each step. */
    static final Duration CLOSE_WAIT = Duration.ofSeconds(10);

    /** The device inside; null: it can only be waited for. */
    private final AsyncDevice async;
    private final SharedFlush flushes = new SharedFlush(this::flushDevice);
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition left = lock.newCondition();
    /** Calls under way, by the turn in which they began; guarded, as what follows, by the lock. */
    private final int[] inside = new int[2];
    /** That of calls that begin now. */
    private int turn;
    /** Somebody waits for the calls of the other turn. */
    private boolean draining;
    private boolean shut;
    /** Changes of blocks that have ended; guarded by the lock. */
    private long changes;
    /** How many of the changes were made durable; guarded by the lock. */
    private long changesFlushed;

    /** Around a device that is open. */
    MemberDevice(Device inner) {
        super(inner);
        async = inner instanceof AsyncDevice able ? able : null;
    }

    boolean isAsync() {
        return async != null;
    }

    /** Nothing begins any more; what is under way goes on. */
    void shut() {
        lock.lock();
        shut = true;
        lock.unlock();
    }

    /** Closes it, and returns when no call is under way any more. */
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

    /** Returns when all calls have ended that are under way now. */
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

    /** A call is about to begin, which is waited for from now on; its turn, for {@link #leave}. */
    int hold() {
        lock.lock();
        try {
            inside[turn]++;
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
            inside[turn]++;
            return turn;
        } finally {
            lock.unlock();
        }
    }

    void leave(int began) {
        lock.lock();
        try {
            if (--inside[began] == 0) {
                left.signalAll();
            }
        } finally {
            lock.unlock();
        }
    }

    /** Counts a change of blocks, done or failed, before anybody learns of its end. */
    private void leaveChange(int began) {
        lock.lock();
        try {
            changes++;
            leave(began);
        } finally {
            lock.unlock();
        }
    }

    /** Not after somebody else has opened the device: the flush would take a report of loss. */
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
     * Finds out whether the device has lost a change that had ended before: afterwards
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
     * Counts also flushes that failed, whoever asked for them: most devices report a loss by the
     * next flush, once.
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
            leave(began);
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        int began = enter(Operation.WRITE, address);
        try {
            super.write(address, buffer);
        } finally {
            leaveChange(began);
        }
    }

    @Override
    public void flush() throws DeviceException {
        int began = enter(Operation.FLUSH, DeviceException.NO_ADDRESS);
        try {
            flushes.run();
        } finally {
            leave(began);
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        int began = enter(Operation.UNMAP, address);
        try {
            super.unmap(address, blocks);
        } finally {
            leaveChange(began);
        }
    }

    /**
     * Begins a read or a write.
     *
     * @return null when the device can only be waited for
     */
    CompletableFuture<Void> begin(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        return begin(operation, address, buffer, device -> { });
    }

    /** As above; {@code given} gets the future of the device, by which the buffer is taken back. */
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
                leaveChange(began);
            }
        }
        given.accept(begun);
        return begun.whenComplete((done, thrown) -> leaveChange(began));
    }
}

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
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
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition left = lock.newCondition();
    /** Calls under way; guarded, as what follows, by the lock. */
    private int inside;
    private boolean shut;

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
                while (inside > 0) {
                    left.awaitUninterruptibly();
                }
            } finally {
                lock.unlock();
            }
        }
    }

    private void enter(Operation operation, long address) throws DeviceClosedException {
        lock.lock();
        try {
            if (shut) {
                throw PoolFailures.closed(name(), operation, address);
            }
            inside++;
        } finally {
            lock.unlock();
        }
    }

    private void leave() {
        lock.lock();
        try {
            if (--inside == 0) {
                left.signalAll();
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        enter(Operation.READ, address);
        try {
            super.read(address, buffer);
        } finally {
            leave();
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        enter(Operation.WRITE, address);
        try {
            super.write(address, buffer);
        } finally {
            leave();
        }
    }

    @Override
    public void flush() throws DeviceException {
        enter(Operation.FLUSH, DeviceException.NO_ADDRESS);
        try {
            super.flush();
        } finally {
            leave();
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        enter(Operation.UNMAP, address);
        try {
            super.unmap(address, blocks);
        } finally {
            leave();
        }
    }

    /**
     * Begins a read or a write.
     *
     * @return null when the device can only be waited for
     */
    CompletableFuture<Void> begin(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        if (async == null) {
            return null;
        }
        enter(operation, address);
        CompletableFuture<Void> begun = null;
        try {
            begun = operation == Operation.READ
                    ? async.readAsync(address, buffer)
                    : async.writeAsync(address, buffer);
        } finally {
            if (begun == null) {
                leave();
            }
        }
        return begun.whenComplete((done, thrown) -> leave());
    }
}

package org.lunarsan.pool;

import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.device.DeviceException;

/**
 * Flushes a device, one flush at a time: callers that wait for a flush share the next one, and its
 * failure. A failure is counted before another flush begins, because a device reports a loss by one
 * flush only, which may be any. Thread-safe.
 */
final class SharedFlush {
    /** Flushes the device. */
    interface Flush {
        void run() throws DeviceException;
    }

    /** One flush of the device, shared by its callers. */
    private static final class Round {
        boolean ended;
        Throwable failure;
    }

    private final Flush flush;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    /** The running flush; null: none. Guarded by the lock, like all below. */
    private Round running;
    /** The next flush, not begun yet; null: no caller waits. */
    private Round next;
    private volatile long failures;

    SharedFlush(Flush flush) {
        this.flush = flush;
    }

    /** Number of flushes of the device that failed. */
    long failures() {
        return failures;
    }

    /** Returns when a flush has ended that began after this call. */
    void run() throws DeviceException {
        Round mine = enter();
        if (mine.ended) {
            rethrow(mine.failure);
            return;
        }
        Throwable failure = null;
        try {
            flush.run();
        } catch (Throwable thrown) {
            failure = thrown;
        }
        lock.lock();
        try {
            if (failure != null) {
                failures++;
            }
            mine.failure = failure;
            mine.ended = true;
            running = null;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        rethrow(failure);
    }

    /** Returns a flush that has ended, or one that the caller has to run. */
    private Round enter() {
        lock.lock();
        try {
            if (next != null) {
                Round shared = next;
                while (!shared.ended) {
                    changed.awaitUninterruptibly();
                }
                return shared;
            }
            Round mine = new Round();
            next = mine;
            while (running != null) {
                changed.awaitUninterruptibly();
            }
            next = null;
            running = mine;
            return mine;
        } finally {
            lock.unlock();
        }
    }

    private static void rethrow(Throwable failure) throws DeviceException {
        switch (failure) {
            case null -> { }
            case DeviceException known -> throw known;
            case RuntimeException defect -> throw defect;
            case Error defect -> throw defect;
            default -> throw new IllegalStateException(failure);
        }
    }
}

package org.lunarsan.initiator;

import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/**
 * Wakes virtual threads whose answers arrived together, and has their next requests sent together.
 *
 * <p>Each unpark by the reader, a platform thread, costs a system call that wakes a carrier, which
 * then runs that virtual thread, sends its next command alone, and sleeps again. So the threads are
 * handed to a virtual thread: it holds the sender, unparks them in its carrier's own queue, yields
 * behind them, and sends what they have submitted.
 *
 * <p>All carriers may be busy or pinned, perhaps by one of the threads to be woken. If a batch has
 * not been woken within a millisecond, the reader wakes it itself.
 *
 * <p>Threads: methods of the reader are marked; the others any.
 */
final class Waker implements Runnable {
    /** Time within which the virtual thread has to run. */
    static final long WAKE_MILLIS = 1;
    private static final long WAKE_NANOS = WAKE_MILLIS * 1_000_000;

    /** The sender, held back while the woken threads run. */
    interface SenderState {
        /** Keeps other threads from sending. False: another thread is sending. */
        boolean hold();

        /** Sends all that is due, and releases the sender. */
        void release();
    }

    private final SenderState sending;
    private final AtomicReference<Thread[]> handed = new AtomicReference<>();
    /** Set while the sender is held; the thread that resets it sends. */
    private final AtomicBoolean holds = new AtomicBoolean();
    private volatile boolean closed;
    /** Number of batches woken; written by the virtual thread. */
    private volatile long done;
    /** Number of batches handed over, and time of the last. Owned by the reader. */
    private long given;
    private long givenAt;
    /** Null until it is needed. Owned by the reader. */
    private Thread thread;

    Waker(SenderState sending) {
        this.sending = sending;
    }

    /** Wakes the threads; the list may be reused afterwards. Called by the reader. */
    void wake(List<Thread> waiters, long now) {
        if (waiters.size() > 1 && !closed && handed.get() == null) {
            given++;
            givenAt = now;
            handed.set(waiters.toArray(Thread[]::new));
            if (thread == null) {
                thread = Thread.ofVirtual().name("iscsi waker").start(this);
            } else {
                LockSupport.unpark(thread);
            }
        } else {
            waiters.forEach(LockSupport::unpark);
        }
    }

    /** True when a batch was handed over and has not been woken. Called by the reader. */
    boolean isBusy() {
        return given != done;
    }

    /** Wakes a batch that was not woken in time. Called by the reader. */
    void wakeIfLate(long now) {
        if (isBusy() && now - givenAt >= WAKE_NANOS) {
            takeBack();
        }
    }

    private void takeBack() {
        Thread[] waiters = handed.getAndSet(null);
        if (waiters != null) {
            given--;
            unpark(waiters);
        }
        if (takeOver()) {
            sending.release();
        }
    }

    /** Ends the handing over of batches. Called by the reader at its end. */
    void close() {
        closed = true;
        takeBack();
        LockSupport.unpark(thread);
    }

    /**
     * Takes the sender over, without waiting for the woken threads. True: the caller holds it now.
     */
    boolean takeOver() {
        return holds.get() && holds.compareAndSet(true, false);
    }

    @Override
    public void run() {
        while (true) {
            Thread[] waiters = handed.getAndSet(null);
            if (waiters != null) {
                wake(waiters);
                done = done + 1;
            } else if (closed) {
                return;
            } else {
                LockSupport.park(this);
            }
        }
    }

    private void wake(Thread[] waiters) {
        if (!sending.hold()) {
            unpark(waiters);
            return;
        }
        holds.set(true);
        unpark(waiters);
        Thread.yield();
        if (takeOver()) {
            sending.release();
        }
    }

    private static void unpark(Thread[] waiters) {
        for (Thread waiter : waiters) {
            LockSupport.unpark(waiter);
        }
    }
}

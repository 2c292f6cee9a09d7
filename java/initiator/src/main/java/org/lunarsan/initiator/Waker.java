package org.lunarsan.initiator;

import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/**
 * Wakes virtual threads whose answers came in together, and has what they ask for next leave
 * together.
 *
 * <p>Each unparked by the reader, a platform thread, costs a system call that wakes a carrier,
 * which then runs that one, sends its next command alone, and sleeps again. So they are handed to
 * a virtual thread: it holds the sender, unparks them in its carrier's own queue, steps behind
 * them, and sends what they left.
 *
 * <p>Carriers may all be busy or pinned, perhaps by one of those that are to be woken. What has
 * been handed over for a millisecond and not been done, the reader does itself.
 *
 * <p>Threads: those of the reader are marked; the rest any.
 */
final class Waker implements Runnable {
    /** For so long a virtual thread is given the time to run. */
    static final long PATIENCE_MILLIS = 1;
    private static final long PATIENCE_NANOS = PATIENCE_MILLIS * 1_000_000;

    /** What is held back while they run, and then sent. */
    interface Sending {
        /** Nobody else sends from now on; false: somebody does. */
        boolean hold();

        /** Sends what there is, and lets go. */
        void release();
    }

    private final Sending sending;
    private final AtomicReference<Thread[]> handed = new AtomicReference<>();
    /** The sender is held, and whoever sets this back sends. */
    private final AtomicBoolean holds = new AtomicBoolean();
    private volatile boolean closed;
    /** How many batches were done; written by the virtual thread. */
    private volatile long done;
    /** How many were handed over, and when the last. Of the reader. */
    private long given;
    private long givenAt;
    /** Null until it is needed. Of the reader. */
    private Thread thread;

    Waker(Sending sending) {
        this.sending = sending;
    }

    /** By the reader: wakes them; the list may be used again. */
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

    /** By the reader: something was handed over and is not done. */
    boolean isBusy() {
        return given != done;
    }

    /** By the reader: does itself what was not done in time. */
    void lookAfter(long now) {
        if (isBusy() && now - givenAt >= PATIENCE_NANOS) {
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

    /** By the reader, at its end: nothing is handed over any more. */
    void close() {
        closed = true;
        takeBack();
        LockSupport.unpark(thread);
    }

    /** Whoever does not want to wait until the woken have run: true, it holds the sender now. */
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

package org.lunarsan.initiator;

import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;

/**
 * Waits that an interrupt does not shorten, but for one: it is the caller's, and is kept for it.
 *
 * <p>Threads: no state.
 */
final class Waits {
    private Waits() {
    }

    /** Waits for so long. */
    static void pause(long nanos) {
        boolean interrupted = Thread.interrupted();
        long until = System.nanoTime() + nanos;
        for (long left = nanos; left > 0; left = until - System.nanoTime()) {
            LockSupport.parkNanos(left);
            interrupted |= Thread.interrupted();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The same for one who was interrupted just now; the interrupt is given back. */
    static void pauseInterrupted(long nanos) {
        pause(nanos);
        Thread.currentThread().interrupt();
    }

    /** Waits for a thread to end. */
    static void join(Thread thread, long nanos) {
        boolean interrupted = false;
        long until = System.nanoTime() + nanos;
        for (long left = nanos; left > 0 && thread.isAlive(); left = until - System.nanoTime()) {
            try {
                thread.join(Duration.ofNanos(left));
            } catch (InterruptedException later) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** As {@link #get}, but an interrupt ends it: for one who waits for what nobody has yet. */
    static <T> T getInterruptibly(Future<T> future, long nanos) throws Failure {
        try {
            return future.get(nanos, TimeUnit.NANOSECONDS);
        } catch (InterruptedException by) {
            Thread.currentThread().interrupt();
            throw Failure.interrupted();
        } catch (TimeoutException | ExecutionException none) {
            return null;
        }
    }

    /** What a future completes with, waited for so long; null when it does not, or fails. */
    static <T> T get(Future<T> future, long nanos) {
        boolean interrupted = Thread.interrupted();
        long until = System.nanoTime() + nanos;
        try {
            while (true) {
                try {
                    return future.get(until - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } catch (TimeoutException | ExecutionException none) {
            return null;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

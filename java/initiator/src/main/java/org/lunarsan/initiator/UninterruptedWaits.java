package org.lunarsan.initiator;

import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;

/**
 * Waits that an interrupt does not shorten, except {@link #getInterruptibly}. The interrupt status
 * is kept for the caller.
 *
 * <p>Threads: no state.
 */
final class UninterruptedWaits {
    private UninterruptedWaits() {
    }

    /** Waits for {@code nanos}. */
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

    /**
     * Waits as {@link #pause} does, in a thread that was just interrupted; restores its interrupt
     * status.
     */
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
            } catch (InterruptedException exception) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Waits as {@link #get} does, but ends at an interrupt: for a result that no other code owns
     * yet.
     */
    static <T> T getInterruptibly(Future<T> future, long nanos) throws Failure {
        try {
            return future.get(nanos, TimeUnit.NANOSECONDS);
        } catch (InterruptedException exception) {
            Thread.currentThread().interrupt();
            throw Failure.interrupted();
        } catch (TimeoutException | ExecutionException exception) {
            return null;
        }
    }

    /**
     * Returns the result of a future, waiting up to {@code nanos}; null if there is none, or it
     * failed.
     */
    static <T> T get(Future<T> future, long nanos) {
        boolean interrupted = Thread.interrupted();
        long until = System.nanoTime() + nanos;
        try {
            while (true) {
                try {
                    return future.get(until - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException exception) {
                    interrupted = true;
                }
            }
        } catch (TimeoutException | ExecutionException exception) {
            return null;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

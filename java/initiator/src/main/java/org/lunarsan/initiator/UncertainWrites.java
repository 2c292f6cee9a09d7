package org.lunarsan.initiator;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Writes of unknown outcome, and the later writes that have to wait for them.
 *
 * <p>The target may still execute a write of a lost session until it has answered the login that
 * replaces the session (RFC 7143 §6.3.5). This could overwrite a later write to the same blocks, so
 * the later write waits until then. It also waits until the lost write was sent again and answered:
 * otherwise the resent write would overwrite newer data. Of several lost writes the oldest goes
 * first.
 *
 * <p>Threads: any.
 */
final class UncertainWrites {
    /** Number of a write that was not lost: it waits for all lost ones. */
    static final long NEW = Long.MAX_VALUE;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition settled = lock.newCondition();
    /** Bounded by the number of writes in flight on the lost connections. */
    private final List<UncertainWrite> uncertainWrites = new ArrayList<>();
    private final List<Replay> replays = new ArrayList<>();
    /**
     * Number of entries in both lists. It is nearly always 0, and then no caller takes the lock.
     */
    private volatile int count;
    /** Sessions with smaller numbers have also ended at the target. */
    private long first;
    private long nextReplay;

    private record UncertainWrite(long session, long lba, long blocks) {
    }

    private record Replay(long number, long lba, long blocks) {
    }

    private static boolean overlap(long lba, long blocks, long otherLba, long otherBlocks) {
        return lba < otherLba + otherBlocks && otherLba < lba + blocks;
    }

    /** Records that a write was lost with session {@code session}. */
    void hold(long session, long lba, long blocks) {
        lock.lock();
        try {
            if (session >= first) {
                uncertainWrites.add(new UncertainWrite(session, lba, blocks));
                counted();
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Records a write that was lost and will be sent again, or that continues after its caller gave
     * it up. Returns its number, for {@link #replayed}.
     */
    long replay(long lba, long blocks) {
        lock.lock();
        try {
            replays.add(new Replay(nextReplay, lba, blocks));
            counted();
            return nextReplay++;
        } finally {
            lock.unlock();
        }
    }

    /** Removes a write that was answered or abandoned. */
    void replayed(long number) {
        lock.lock();
        try {
            replays.removeIf(replay -> replay.number == number);
            counted();
        } finally {
            lock.unlock();
        }
    }

    /** Records that session {@code session} has replaced all earlier ones. */
    void replaced(long session) {
        lock.lock();
        try {
            first = Math.max(first, session);
            uncertainWrites.removeIf(write -> write.session < session);
            counted();
        } finally {
            lock.unlock();
        }
    }

    private void counted() {
        count = uncertainWrites.size() + replays.size();
        settled.signalAll();
    }

    /**
     * True when a write to these blocks has to wait. {@code own}: its own number, or {@link #NEW}.
     */
    boolean overlaps(long lba, long blocks, long own) {
        if (count == 0) {
            return false;
        }
        lock.lock();
        try {
            return uncertainWrites.stream().anyMatch(write ->
                            overlap(lba, blocks, write.lba, write.blocks))
                    || replays.stream().anyMatch(replay -> replay.number < own
                            && overlap(lba, blocks, replay.lba, replay.blocks));
        } finally {
            lock.unlock();
        }
    }

    /** True when the outcome of any write is unknown. */
    boolean isAny() {
        return count > 0;
    }

    /** Waits for {@code nanos}, or until a write is settled. */
    void awaitChange(long nanos) {
        boolean interrupted = false;
        lock.lock();
        try {
            if (count > 0) {
                settled.await(nanos, TimeUnit.NANOSECONDS);
            }
        } catch (InterruptedException exception) {
            interrupted = true;
        } finally {
            lock.unlock();
        }
        if (interrupted) {
            UninterruptedWaits.pauseInterrupted(nanos);
        }
    }
}

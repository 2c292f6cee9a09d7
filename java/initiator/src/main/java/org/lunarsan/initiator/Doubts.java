package org.lunarsan.initiator;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Writes whose fate is not known, and who has to wait for them.
 *
 * <p>A write whose session was lost may still be executed until the target has answered the login
 * that takes the place of the lost session (RFC 7143 §6.3.5). A later write to the same blocks
 * could be overwritten by it, so it waits until then. And it waits until the lost write was sent
 * again and answered: else that, late, would overwrite what is newer. Of several that were lost the
 * older goes first.
 *
 * <p>Threads: any.
 */
final class Doubts {
    /** A write that was not lost: it waits for all. */
    static final long NEW = Long.MAX_VALUE;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition settled = lock.newCondition();
    /** At most what was sent before it was lost, which connections limit. */
    private final List<Doubt> doubts = new ArrayList<>();
    private final List<Replay> replays = new ArrayList<>();
    /** As many as there are: nearly always none, and then nobody takes the lock. */
    private volatile int count;
    /** Sessions with smaller numbers have ended at the target too. */
    private long first;
    private long nextReplay;

    private record Doubt(long session, long lba, long blocks) {
    }

    private record Replay(long number, long lba, long blocks) {
    }

    private static boolean overlap(long lba, long blocks, long otherLba, long otherBlocks) {
        return lba < otherLba + otherBlocks && otherLba < lba + blocks;
    }

    /** A write of session {@code session} was lost with it. */
    void hold(long session, long lba, long blocks) {
        lock.lock();
        try {
            if (session >= first) {
                doubts.add(new Doubt(session, lba, blocks));
                counted();
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * A write was lost and will be sent again, or its caller has given it up while it goes on;
     * gives its number, for {@link #replayed}.
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

    /** It was answered, or given up. */
    void replayed(long number) {
        lock.lock();
        try {
            replays.removeIf(replay -> replay.number == number);
            counted();
        } finally {
            lock.unlock();
        }
    }

    /** Session {@code session} has taken the place of all before it. */
    void replaced(long session) {
        lock.lock();
        try {
            first = Math.max(first, session);
            doubts.removeIf(doubt -> doubt.session < session);
            counted();
        } finally {
            lock.unlock();
        }
    }

    private void counted() {
        count = doubts.size() + replays.size();
        settled.signalAll();
    }

    /** Whether a write to these blocks has to wait; its own number, or {@link #NEW}. */
    boolean concern(long lba, long blocks, long own) {
        if (count == 0) {
            return false;
        }
        lock.lock();
        try {
            return doubts.stream().anyMatch(doubt ->
                            overlap(lba, blocks, doubt.lba, doubt.blocks))
                    || replays.stream().anyMatch(replay -> replay.number < own
                            && overlap(lba, blocks, replay.lba, replay.blocks));
        } finally {
            lock.unlock();
        }
    }

    /** Anything is in doubt. */
    boolean isAny() {
        return count > 0;
    }

    /** Waits for so long, or until something is settled. */
    void awaitChange(long nanos) {
        boolean interrupted = false;
        lock.lock();
        try {
            if (count > 0) {
                settled.await(nanos, TimeUnit.NANOSECONDS);
            }
        } catch (InterruptedException later) {
            interrupted = true;
        } finally {
            lock.unlock();
        }
        if (interrupted) {
            Waits.pauseInterrupted(nanos);
        }
    }
}

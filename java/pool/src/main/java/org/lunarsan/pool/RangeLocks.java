package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Serializes changes of the same blocks: otherwise two writes could reach two members in different
 * orders, and these would differ for good. Thread-safe; first come, first served.
 */
final class RangeLocks {
    private final ReentrantLock lock = new ReentrantLock();
    /** Held and waiting ranges, in the order of arrival. */
    private final LinkedHashSet<Held> ranges = new LinkedHashSet<>();

    /** A range that is held by the thread that acquired it. */
    final class Held {
        private final long first;
        private final long end;
        private final List<Held> dependents = new ArrayList<>(0);
        private final Condition free;
        private int blockers;

        private Held(long first, long end) {
            this.first = first;
            this.end = end;
            free = lock.newCondition();
        }

        void release() {
            RangeLocks.this.release(this);
        }
    }

    /** Waits until no earlier range overlaps with these blocks. */
    Held acquire(long first, long blocks) {
        lock.lock();
        try {
            Held mine = new Held(first, first + blocks);
            for (Held other : ranges) {
                if (other.first < mine.end && mine.first < other.end) {
                    other.dependents.add(mine);
                    mine.blockers++;
                }
            }
            ranges.add(mine);
            while (mine.blockers > 0) {
                mine.free.awaitUninterruptibly();
            }
            return mine;
        } finally {
            lock.unlock();
        }
    }

    private void release(Held mine) {
        lock.lock();
        try {
            ranges.remove(mine);
            for (Held dependent : mine.dependents) {
                if (--dependent.blockers == 0) {
                    dependent.free.signal();
                }
            }
        } finally {
            lock.unlock();
        }
    }
}

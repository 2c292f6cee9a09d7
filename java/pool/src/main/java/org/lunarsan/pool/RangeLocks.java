package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One change at a time of any block: else two writes to the same blocks could reach two members in
 * different orders, and they would differ for good. For any thread; who came first goes first.
 */
final class RangeLocks {
    private final ReentrantLock lock = new ReentrantLock();
    /** Held ones and those that wait, in the order of arrival. */
    private final LinkedHashSet<Held> ranges = new LinkedHashSet<>();

    /** A range that is held, by the thread that acquired it. */
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

    /** Waits until nobody who came before holds one of these blocks. */
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

package org.lunarsan.device;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The blocks of pending writes that their callers have abandoned. Later changes of these blocks
 * wait, because otherwise the older data could replace theirs. Thread-safe.
 */
final class AbandonedWrites {
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition removed = lock.newCondition();
    /** Guarded by the lock. */
    private final List<Range> ranges = new ArrayList<>();
    /** Number of ranges; most calls read nothing else. */
    private volatile int count;

    /** Blocks of one write. */
    static final class Range {
        private final long address;
        private final long blocks;

        Range(long address, long blocks) {
            this.address = address;
            this.blocks = blocks;
        }

        private boolean overlaps(long first, long length) {
            return address < first + length && first < address + blocks;
        }
    }

    void add(Range range) {
        lock.lock();
        try {
            ranges.add(range);
            count = ranges.size();
        } finally {
            lock.unlock();
        }
    }

    /** Removes a write that has ended. No effect when the range was not added. */
    void remove(Range range) {
        if (count == 0) {
            return;
        }
        lock.lock();
        try {
            if (ranges.remove(range)) {
                count = ranges.size();
                removed.signalAll();
            }
        } finally {
            lock.unlock();
        }
    }

    /** Returns when no abandoned write of any of these blocks is pending. */
    void await(long address, long blocks) {
        if (count == 0) {
            return;
        }
        lock.lock();
        try {
            while (ranges.stream().anyMatch(range -> range.overlaps(address, blocks))) {
                removed.awaitUninterruptibly();
            }
        } finally {
            lock.unlock();
        }
    }
}

package org.lunarsan.pool;

import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntPredicate;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * Records on the members, before a write is sent, the regions that it touches, and removes the
 * marks later. After a power cut, members can differ only in marked regions.
 *
 * <p>Thread-safe. A mark is removed when the region was not written for a whole flush interval
 * and all members were flushed since. Marks are removed late so that a region with frequent writes
 * is marked once.
 */
final class IntentLog {
    private final UUID pool;
    private final int regions;
    private final long regionBlocks;
    /** Guards the state below; not held during I/O. */
    private final ReentrantLock lock = new ReentrantLock();
    /** Held while pages are written: one at a time. */
    private final ReentrantLock writing = new ReentrantLock();
    /** The regions that are marked durably on all current members. */
    private final BitSet durable;
    /** Number of pending writes, by region. */
    private final int[] underWay;
    /** The flush interval of the last write, by region. */
    private final int[] lastWrite;
    private int interval = 1;
    /** The last interval that ended with a successful flush. */
    private int covered;
    /** Time for which the write of a page waits for a member behind another. */
    private final Duration memberWait;
    /** Sequence number of the last page; guarded by {@code writing}. */
    private long sequence;

    IntentLog(
            UUID pool,
            int regions,
            long regionBlocks,
            BitSet marked,
            long sequence,
            Duration memberWait) {
        this.pool = pool;
        this.memberWait = memberWait;
        this.regions = regions;
        this.regionBlocks = regionBlocks;
        this.sequence = sequence;
        durable = (BitSet) marked.clone();
        underWay = new int[regions];
        lastWrite = new int[regions];
    }

    int regions() {
        return regions;
    }

    int region(long address) {
        return (int) (address / regionBlocks);
    }

    long regionBlocks() {
        return regionBlocks;
    }

    /** Marks the regions of a write before it is sent; call {@link #end} in any case. */
    List<Parallel.Failed<MirrorMember>> begin(
            long address, long blocks, List<MirrorMember> current) {
        int first = region(address);
        int last = region(address + blocks - 1);
        boolean marked;
        lock.lock();
        try {
            marked = durable.nextClearBit(first) > last;
            for (int region = first; region <= last; region++) {
                underWay[region]++;
                lastWrite[region] = interval;
            }
        } finally {
            lock.unlock();
        }
        return marked ? List.of() : mark(first, last, current);
    }

    private List<Parallel.Failed<MirrorMember>> mark(
            int first, int last, List<MirrorMember> current) {
        writing.lock();
        try {
            BitSet next;
            lock.lock();
            try {
                if (durable.nextClearBit(first) > last) {
                    return List.of();
                }
                next = (BitSet) durable.clone();
                // Include the regions of concurrent writes, which wait for this page.
                for (int region = 0; region < regions; region++) {
                    if (underWay[region] > 0) {
                        next.set(region);
                    }
                }
            } finally {
                lock.unlock();
            }
            List<Parallel.Failed<MirrorMember>> failed = write(next, current);
            if (failed.isEmpty()) {
                lock.lock();
                durable.or(next);
                lock.unlock();
            }
            return failed;
        } finally {
            writing.unlock();
        }
    }

    /** Records that a copy has written a region of a member, which was not flushed since. */
    void copied(int region) {
        lock.lock();
        try {
            lastWrite[region] = interval;
        } finally {
            lock.unlock();
        }
    }

    void end(long address, long blocks) {
        int last = region(address + blocks - 1);
        lock.lock();
        try {
            for (int region = region(address); region <= last; region++) {
                underWay[region]--;
                lastWrite[region] = interval;
            }
        } finally {
            lock.unlock();
        }
    }

    /** Begins a flush interval; pass the result to {@link #flushed}. */
    int beginFlush() {
        lock.lock();
        try {
            return interval++;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Ends a flush of all current members. Removes the marks of regions that were idle before it.
     *
     * @param flushed result of {@link #beginFlush}
     * @param same whether all members are equal in a region
     */
    List<Parallel.Failed<MirrorMember>> flushed(
            int flushed, IntPredicate same, List<MirrorMember> current) {
        writing.lock();
        try {
            BitSet next = unmark(flushed, flushed, same);
            return next == null ? List.of() : write(next, current);
        } finally {
            writing.unlock();
        }
    }

    /**
     * Ends the last flush as {@link #flushed} does, but also unmarks regions written shortly before
     * it.
     *
     * @param limit how long to wait for members
     */
    List<Parallel.Failed<MirrorMember>> endLastFlush(
            int flushed, IntPredicate same, List<MirrorMember> current, Duration limit) {
        writing.lock();
        try {
            BitSet next = unmark(flushed, flushed + 1, same);
            return next == null
                    ? List.of()
                    : Parallel.runWithin(limit, Operation.WRITE, current, page(next));
        } finally {
            writing.unlock();
        }
    }

    /** Removes unneeded marks. Returns the remaining ones, or null if none was removed. */
    private BitSet unmark(int flushed, int coldBefore, IntPredicate same) {
        lock.lock();
        try {
            covered = Math.max(covered, flushed);
            boolean any = false;
            for (int region = durable.nextSetBit(0); region >= 0;
                    region = durable.nextSetBit(region + 1)) {
                if (underWay[region] == 0 && lastWrite[region] < coldBefore
                        && same.test(region)) {
                    // From now on a write to this region waits for another page.
                    durable.clear(region);
                    any = true;
                }
            }
            return any ? (BitSet) durable.clone() : null;
        } finally {
            lock.unlock();
        }
    }

    private List<Parallel.Failed<MirrorMember>> write(BitSet dirty, List<MirrorMember> current) {
        return Parallel.runBehind(memberWait, Operation.WRITE, current, page(dirty));
    }

    /** Flush each page before the next is begun: otherwise a power cut could leave an older one. */
    private Parallel.Work<MirrorMember> page(BitSet dirty) {
        IntentPage page = new IntentPage(pool, ++sequence, regions, dirty);
        return member -> {
            MemberArea.writeIntent(member.device, page);
            member.device.flush();
        };
    }

    /**
     * Writes the current marks to a member. No write is pending.
     *
     * @param limit how long to wait for it, for each page
     */
    void copyTo(MirrorMember member, Duration limit) throws DeviceException {
        writing.lock();
        try {
            long first = sequence + 1;
            // Count both in any case: otherwise the next page would overwrite the newest of the
            // other members.
            sequence += 2;
            for (int slot = 0; slot < 2; slot++) {
                IntentPage page = new IntentPage(pool, first + slot, regions, durable);
                List<Parallel.Failed<MirrorMember>> failed =
                        Parallel.runWithin(limit, Operation.WRITE, List.of(member), one -> {
                            MemberArea.writeIntent(one.device, page);
                            one.device.flush();
                        });
                if (!failed.isEmpty()) {
                    throw failed.getFirst().failure();
                }
            }
        } finally {
            writing.unlock();
        }
    }

    /**
     * Returns the regions that were written since the last successful flush, or are being written.
     */
    BitSet unflushed() {
        lock.lock();
        try {
            BitSet regions = new BitSet();
            for (int region = durable.nextSetBit(0); region >= 0;
                    region = durable.nextSetBit(region + 1)) {
                if (underWay[region] > 0 || lastWrite[region] > covered) {
                    regions.set(region);
                }
            }
            return regions;
        } finally {
            lock.unlock();
        }
    }

    int dirtyCount() {
        lock.lock();
        try {
            return durable.cardinality();
        } finally {
            lock.unlock();
        }
    }
}

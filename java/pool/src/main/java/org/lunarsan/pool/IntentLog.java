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
 * Says on the members, before a write is sent, in which region it will be; and later that it is
 * over. After a power cut, members can differ only in regions that are marked.
 *
 * <p>For any thread. Marks are taken away when a region was not written for a whole flush interval
 * and all members were flushed since: lazily, so that a region that is written again and again is
 * marked once.
 */
final class IntentLog {
    private final UUID pool;
    private final int regions;
    private final long regionBlocks;
    /** Guards the state below; not held during I/O. */
    private final ReentrantLock lock = new ReentrantLock();
    /** Held while pages are written: one at a time. */
    private final ReentrantLock writing = new ReentrantLock();
    /** The regions that are marked on all current members, durably. */
    private final BitSet durable;
    /** Writes under way, by region. */
    private final int[] underWay;
    /** The flush interval in which a region was written last. */
    private final int[] lastWrite;
    private int interval = 1;
    /** The last interval that a good flush has ended. */
    private int covered;
    /** How long a page waits for a member behind another. */
    private final Duration memberWait;
    /** Of the last page; guarded by {@code writing}. */
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

    /** Marks the regions of a write before it is sent; {@link #end} follows in any case. */
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
                // Those of others too, who wait behind.
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

    /** A copy has brought a region to a member, which was not flushed since. */
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

    /** A flush is about to be sent; the answer goes to {@link #flushed}. */
    int beginFlush() {
        lock.lock();
        try {
            return interval++;
        } finally {
            lock.unlock();
        }
    }

    /**
     * All current members were flushed. Takes marks away of regions that were cold already.
     *
     * @param flushed what {@link #beginFlush} said
     * @param same whether all members have the same in a region
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
     * As {@link #flushed} after the last flush: what was written before it is cold enough.
     *
     * @param limit how long to wait for members
     */
    List<Parallel.Failed<MirrorMember>> settle(
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

    /** Takes marks away that no member needs; gives those that stay, null when all do. */
    private BitSet unmark(int flushed, int coldBefore, IntPredicate same) {
        lock.lock();
        try {
            covered = Math.max(covered, flushed);
            boolean any = false;
            for (int region = durable.nextSetBit(0); region >= 0;
                    region = durable.nextSetBit(region + 1)) {
                if (underWay[region] == 0 && lastWrite[region] < coldBefore
                        && same.test(region)) {
                    // From now on a write there waits for a page of its own.
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

    /** Durable on each before the next page is begun: else a cut could leave an older one. */
    private Parallel.Work<MirrorMember> page(BitSet dirty) {
        IntentPage page = new IntentPage(pool, ++sequence, regions, dirty);
        return member -> {
            MemberArea.writeIntent(member.device, page);
            member.device.flush();
        };
    }

    /**
     * Gives a member the marks of the others, whatever it had. No write is under way.
     *
     * @param limit how long to wait for it, for each page
     */
    void copyTo(MirrorMember member, Duration limit) throws DeviceException {
        writing.lock();
        try {
            long first = sequence + 1;
            // Both in any case: else the next page of the others went over their newest.
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

    /** The regions that were written since the last good flush, or are being written. */
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

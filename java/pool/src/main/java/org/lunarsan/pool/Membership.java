package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.device.ReadOnlyDeviceException;

/**
 * What the members of an open mirror are good for, in memory and on their labels. It changes behind
 * its write lock only, which is held while labels are written; whoever uses members holds the read
 * lock. For any thread.
 */
final class Membership {
    private final String name;
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock(true);
    /** By place. */
    private volatile List<MirrorMember> members;
    /** Without an index. */
    private volatile PoolLabel label;
    private final boolean openedToRead;
    private final Duration memberWait;
    /** Brings a member that was late up to date, in the background. */
    private final Consumer<MirrorMember> recovery;
    /** The regions that were written since the last good flush. */
    private final Supplier<BitSet> unflushed;
    private final UnsecuredRegions unsecured = new UnsecuredRegions();
    /** Changes behind the lock. */
    private volatile long losses;
    private volatile long lossesTold;
    /** How often reads of the pool have come into doubt; changes behind the lock. */
    private volatile long doubts;
    /** Nobody begins anything, nobody is left out any more. */
    private volatile boolean closing;
    private final CountDownLatch closed = new CountDownLatch(1);

    /**
     * Of members that are open.
     *
     * @param memberWait how long a member is waited for behind another
     * @param recovery takes those that were left out since they were late; must not wait
     * @param unflushed gives the regions that were written since the last good flush
     */
    Membership(
            String name,
            PoolLabel label,
            List<MirrorMember> members,
            Duration memberWait,
            Consumer<MirrorMember> recovery,
            Supplier<BitSet> unflushed) {
        this.name = name;
        this.unflushed = unflushed;
        this.memberWait = memberWait;
        this.recovery = recovery;
        this.label = label;
        this.members = List.copyOf(members);
        openedToRead = anyReadOnly();
    }

    String name() {
        return name;
    }

    PoolLabel label() {
        return label;
    }

    List<MirrorMember> members() {
        return members;
    }

    Lock readLock() {
        return lock.readLock();
    }

    Lock writeLock() {
        return lock.writeLock();
    }

    boolean isClosing() {
        return closing;
    }

    void beginClosing() {
        closing = true;
        closed.countDown();
    }

    /** Waits for some time; true: it ended early, since the pool is being closed. */
    boolean awaitClosing(Duration time) throws InterruptedException {
        return closed.await(time.toNanos(), TimeUnit.NANOSECONDS);
    }

    List<MirrorMember> current() {
        return members.stream().filter(MirrorMember::isCurrent).toList();
    }

    /** Those that changes are sent to. */
    List<MirrorMember> written() {
        return members.stream().filter(MirrorMember::isWritten).toList();
    }

    /** A member took no writes when the pool was opened: nothing at all is written to any. */
    boolean isOpenedToRead() {
        return openedToRead;
    }

    /** Also when a member takes no writes any more. */
    boolean isReadOnly() {
        return openedToRead || anyReadOnly();
    }

    private boolean anyReadOnly() {
        return members.stream()
                .anyMatch(member -> member.device != null && member.device.isReadOnly());
    }

    void refuseReadOnly(Operation operation, long address, long blocks)
            throws ReadOnlyDeviceException {
        if (isReadOnly()) {
            throw PoolFailures.readOnly(name, operation, address, blocks);
        }
    }

    void refuseFailed(
            Operation operation, long address, long blocks, List<MirrorMember> current)
            throws MediumException {
        if (current.isEmpty()) {
            throw new MediumException(name, operation, address, blocks,
                    "no member is current any more; close the pool and open it again", null);
        }
    }

    void refuseClosing(Operation operation, long address) throws DeviceClosedException {
        if (closing) {
            throw PoolFailures.closed(name, operation, address);
        }
    }

    /**
     * Members have failed: nothing they have counts from now on. So it is with those that may have
     * lost what they had acknowledged. Returns when the labels of the others say so, durably. The
     * last one stays, whatever it did: when it has lost something too, the loss is one of the pool.
     *
     * @return whether a current member is left that did not fail. Others may have been left out
     *     since these failed, for failures of their own: only now it is known who has a change.
     */
    boolean leaveOut(List<MirrorMember> failed) throws DeviceException {
        lock.writeLock().lock();
        try {
            refuseClosing(Operation.WRITE, DeviceException.NO_ADDRESS);
            for (MirrorMember member : failed) {
                if (member.state() == MemberState.SYNCING) {
                    logLeftOut(member);
                    member.become(MemberState.STALE);
                }
            }
            List<MirrorMember> before = current();
            List<MirrorMember> left = new ArrayList<>(before);
            left.removeAll(failed);
            List<MirrorMember> good = left.stream().filter(one -> !one.hasLost()).toList();
            left.stream().filter(MirrorMember::hasLost).forEach(one -> one.fail(lossOf(one)));
            boolean lost = false;
            if (good.isEmpty() && !before.isEmpty()) {
                List<MirrorMember> among = left.isEmpty() ? before : left;
                good = keepOne(among);
                lost = good.getFirst().hasLost();
                if (lost) {
                    latchLoss(good.getFirst(), among);
                }
            }
            if (good.size() < before.size()) {
                setCurrent(good, lost);
            }
            // Also those count no more that could not be told of it.
            return !left.isEmpty() && current().stream().anyMatch(one -> !failed.contains(one));
        } finally {
            recoverLate();
            lock.writeLock().unlock();
        }
    }

    /**
     * A member may have lost what it had acknowledged: it is left out like one that fails. Where
     * every one has, the loss is one of the pool, and one of them counts as it is now.
     *
     * @return whether what was read from it is not to be used
     */
    boolean mistrust(MirrorMember member) throws DeviceException {
        lock.writeLock().lock();
        try {
            if (!member.isCurrent()) {
                return true;
            }
            if (!member.hasLost()) {
                return false;
            }
            leaveOut(List.of());
            return true;
        } finally {
            lock.writeLock().unlock();
        }
    }

    /**
     * No member has all that was acknowledged. The member that is kept counts as it is now; the
     * loss is counted, and stays untold until a flush of a caller has failed. Behind the lock.
     */
    private void latchLoss(MirrorMember kept, List<MirrorMember> among) {
        long others = among.stream().filter(one -> one != kept)
                .mapToLong(one -> one.losses() - 1).sum();
        losses += Math.max(keepAsItIs(kept) + others, 1);
        Log.warn(() -> name + ": no member has kept all writes that had returned, " + kept
                + " is kept as it is; the next flush fails");
    }

    /**
     * What the member shows counts from now on. A member that is copied to may have more: what was
     * lost here since the copy.
     *
     * @return how often it had lost something
     */
    private long keepAsItIs(MirrorMember kept) {
        BitSet regions = unflushed.get();
        unsecured.addUrgent(regions);
        members.stream().filter(member -> member.state() == MemberState.SYNCING)
                .forEach(member -> member.miss(regions));
        return kept.acceptLosses();
    }

    UnsecuredRegions unsecured() {
        return unsecured;
    }

    /**
     * A region was written anew, unless a member that was written has lost something since.
     *
     * @param additions how often unsecured regions had been added before
     * @param written the members that were written
     */
    void secured(int region, int additions, Set<MirrorMember> written) throws DeviceException {
        for (MirrorMember member : written) {
            // It is left out, or kept as it is: then more is unsecured.
            mistrust(member);
        }
        lock.readLock().lock();
        try {
            if (written.stream().allMatch(MirrorMember::isCurrent)) {
                unsecured.remove(region, additions);
            }
        } finally {
            lock.readLock().unlock();
        }
    }

    /** Reads that were answered before may have found what is not there any more. */
    void doubtReads() {
        lock.writeLock().lock();
        doubts++;
        lock.writeLock().unlock();
    }

    /** How many losses of the pool failed flushes of callers have told of. */
    long lossesTold() {
        return lossesTold;
    }

    /** A flush of a caller has failed: nothing counts that was written since the last good one. */
    void tellLosses() {
        // Of two at once the lower number may stay: then one flush more fails.
        lossesTold = losses;
    }

    /**
     * Fails a flush that may not cover all that was written before it.
     *
     * @param told what {@link #lossesTold()} was when the flush began
     */
    void refuseLosses(long told) throws PoisonedException {
        if (losses > told) {
            throw new PoisonedException(name, Operation.FLUSH,
                    "what had been written and not flushed may be lost: no member has kept it all",
                    null);
        }
    }

    /** Whether a loss is known of which no flush has told. */
    boolean hasUntoldLoss() {
        return losses > lossesTold;
    }

    /** Has all members copied to that were left out since they were late. Behind the lock. */
    private void recoverLate() {
        for (MirrorMember member : members) {
            if (member.isLate() && member.state() == MemberState.STALE && !closing
                    && !member.isRecovering()) {
                member.setRecovering(true);
                recovery.accept(member);
            }
        }
    }

    /** False: it was late again, and its recovery goes on. */
    boolean endRecovery(MirrorMember member) {
        lock.writeLock().lock();
        try {
            boolean over = !member.isLate() || member.state() != MemberState.STALE;
            member.setRecovering(!over);
            return over;
        } finally {
            lock.writeLock().unlock();
        }
    }

    private void logLeftOut(MirrorMember member) {
        Log.warn(() -> name + ": member " + member + " is left out: " + member.lastFailure()
                + "; the others go on, and what it has is stale");
    }

    /** What a member that has lost something is told to have failed with. */
    static PoisonedException lossOf(MirrorMember member) {
        return new PoisonedException(member.toString(), Operation.READ,
                "what it had acknowledged and not flushed may be lost: its device counts a loss, or"
                        + " a flush of it failed", null);
    }

    /**
     * How often no member was left that had kept all it had acknowledged. A loss of all members
     * counts as soon as they know of it, before the pool does: once for the first of each, and for
     * any later one, since what was written between them may be lost by that.
     */
    long losses() {
        while (true) {
            long known = losses;
            List<MirrorMember> current = current();
            long sum = 1;
            boolean all = !current.isEmpty();
            for (MirrorMember member : current) {
                long lost = member.losses();
                all &= lost > 0;
                sum += lost - 1;
            }
            if (known == losses) {
                return all ? known + sum : known;
            }
        }
    }

    /**
     * How often a member was left out that may have answered reads with blocks that it had lost,
     * and how often members doubted their own reads.
     */
    long doubtedReads() {
        return doubts + members.stream().filter(member -> member.device != null)
                .mapToLong(member -> member.device.doubtedReads()).sum();
    }

    /**
     * While the pool is closed: the labels of the others say that these are not current. Behind the
     * lock, alone.
     *
     * @param limit how long to wait for each label
     * @return false: no other is left, or it could not be told
     */
    boolean leaveOutClosing(List<MirrorMember> failed, Duration limit) {
        List<MirrorMember> rest = new ArrayList<>(current());
        rest.removeAll(failed);
        if (rest.isEmpty()) {
            return false;
        }
        BitSet places = new BitSet();
        rest.forEach(member -> places.set(member.index));
        failed.forEach(member -> member.become(MemberState.STALE));
        label = label.next(places);
        PoolLabel now = label;
        return Parallel.runWithin(limit, Operation.WRITE, rest,
                member -> MemberArea.writeLabel(member.device, now.at(member.index))).isEmpty();
    }

    /** Of members that all have failed: one that has every region, else the first. */
    private static List<MirrorMember> keepOne(List<MirrorMember> members) {
        for (MirrorMember member : members) {
            if (member.holdsAll()) {
                return List.of(member);
            }
        }
        return List.of(members.getFirst());
    }

    /**
     * Makes some members the current ones, and all other present ones stale; those that cannot be
     * told are not current either. Behind the lock, alone.
     */
    void setCurrent(List<MirrorMember> chosen) throws DeviceException {
        try {
            setCurrent(chosen, false);
        } finally {
            recoverLate();
        }
    }

    /**
     * As {@link #setCurrent(List)}.
     *
     * @param lossCounted what the last member has lost is counted already
     */
    private void setCurrent(List<MirrorMember> chosen, boolean lossCounted)
            throws DeviceException {
        List<MirrorMember> next = new ArrayList<>(chosen);
        List<Parallel.Failed<MirrorMember>> failed;
        boolean repeated = false;
        do {
            for (MirrorMember member : members) {
                if (member.isCurrent() && !next.contains(member)) {
                    logLeftOut(member);
                    member.become(MemberState.STALE);
                    // Counted when the member is not read any more. Whatever it failed with, it may
                    // have lost writes before, and no flush of it has told.
                    doubts++;
                }
            }
            BitSet places = new BitSet();
            next.forEach(member -> places.set(member.index));
            label = label.next(places);
            PoolLabel now = label;
            failed = Parallel.runBehind(memberWait, Operation.WRITE, next,
                    member -> MemberArea.writeLabel(member.device, now.at(member.index)));
            next.removeAll(told(failed));
            if (next.isEmpty()) {
                MirrorMember last = failed.getFirst().member();
                if (repeated || !last.hasLost()) {
                    members.stream().filter(MirrorMember::isCurrent)
                            .forEach(member -> member.become(MemberState.STALE));
                    throw PoolFailures.of(
                            name, Operation.WRITE, DeviceException.NO_ADDRESS, 0, failed);
                }
                // Its flush told of a loss, once: that is told to a caller, and the label tried
                // again.
                repeated = true;
                if (lossCounted) {
                    keepAsItIs(last);
                } else {
                    latchLoss(last, List.of(last));
                }
                next.add(last);
            }
        } while (!failed.isEmpty());
        next.forEach(member -> member.become(MemberState.CURRENT));
        promote(next);
    }

    /** Notes what members failed with. */
    static List<MirrorMember> told(List<Parallel.Failed<MirrorMember>> failed) {
        failed.forEach(bad -> bad.member().fail(bad.failure()));
        return failed.stream().map(Parallel.Failed::member).toList();
    }

    /**
     * The one that the others were copied from may be gone: in regions that none of them has, what
     * the first has is the truth. Whoever copied such a region from the one that is gone does it
     * again. Regions that any of them has are copied from there, so that no read changes.
     */
    private void promote(List<MirrorMember> current) {
        MirrorMember truth = current.getFirst();
        BitSet lost = truth.missing();
        current.forEach(member -> lost.and(member.missing()));
        if (lost.isEmpty()) {
            return;
        }
        truth.has(lost);
        unsecured.add(lost);
        for (MirrorMember member : members) {
            if (member != truth && member.isWritten()) {
                member.miss(lost);
            }
        }
    }

    /** Puts another device in the place of a member that is of no use. Behind the lock, alone. */
    void replace(MirrorMember with) {
        List<MirrorMember> changed = new ArrayList<>(members);
        // The sum never falls back to a number that a cache has seen.
        MemberDevice before = members.get(with.index).device;
        doubts += 1 + (before == null ? 0 : before.doubtedReads());
        changed.set(with.index, with);
        members = List.copyOf(changed);
    }
}

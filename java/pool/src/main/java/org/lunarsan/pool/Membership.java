package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.Comparator;
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
 * The states of the members of an open mirror, in memory and on their labels. The states change
 * only behind the write lock, which is held while labels are written; users of members hold the
 * read lock. Thread-safe.
 */
final class Membership {
    private final String name;
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock(true);
    /** Indexed by member. */
    private volatile List<MirrorMember> members;
    /** The label without a slot. */
    private volatile PoolLabel label;
    private final boolean openedReadOnly;
    private final Duration memberWait;
    /** Brings a late member up to date, in the background. */
    private final Consumer<MirrorMember> recovery;
    /** Returns the regions written since the last successful flush. */
    private final Supplier<BitSet> unflushed;
    private final RegionsToRewrite regionsToRewrite = new RegionsToRewrite();
    /** Changed behind the lock. */
    private volatile long losses;
    private volatile long reportedLosses;
    /** Number of times that earlier reads of the pool became stale; changed behind the lock. */
    private volatile long staleReads;
    /** Set when no call may begin and no member is left out any more. */
    private volatile boolean closing;
    private final CountDownLatch closed = new CountDownLatch(1);

    /**
     * Creates the membership of open members.
     *
     * @param memberWait how long to wait for a member after another one has answered
     * @param recovery receives members that were left out as late; must not wait
     * @param unflushed returns the regions written since the last successful flush
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
        openedReadOnly = anyReadOnly();
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

    /** Waits for {@code time}. True: ended early, because the pool is being closed. */
    boolean awaitClosing(Duration time) throws InterruptedException {
        return closed.await(time.toNanos(), TimeUnit.NANOSECONDS);
    }

    List<MirrorMember> current() {
        return members.stream().filter(MirrorMember::isCurrent).toList();
    }

    /** Returns the members to which changes are sent. */
    List<MirrorMember> receivingWrites() {
        return members.stream().filter(MirrorMember::receivesWrites).toList();
    }

    /**
     * True if a member was read-only when the pool was opened: nothing is written to any member.
     */
    boolean isOpenedReadOnly() {
        return openedReadOnly;
    }

    /** True also if a member has become read-only since. */
    boolean isReadOnly() {
        return openedReadOnly || anyReadOnly();
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
     * Leaves failed members out: their data does not count from now on. Leaves out those that may
     * have lost acknowledged writes as well, and those with a late change, which may still reach
     * blocks that are read or written after it. Returns when the labels of the remaining members
     * record this, durably. The last member stays in any case: if it has a loss too, the pool has
     * the loss; if it has late changes, this waits until they have ended.
     *
     * @return true if a current member is left that did not fail. Other members may meanwhile have
     *         been left out for failures of their own, so only after this call it is known which
     *         members have a change
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
            List<MirrorMember> whole = left.stream().filter(one -> !one.hasLost()).toList();
            List<MirrorMember> good = whole.stream().filter(one -> !one.isInDoubt()).toList();
            left.stream().filter(MirrorMember::hasLost).forEach(one -> one.fail(lossOf(one)));
            boolean lost = false;
            if (good.isEmpty() && !before.isEmpty()) {
                List<MirrorMember> among = !whole.isEmpty() ? whole
                        : left.isEmpty() ? before : left;
                good = keepOne(among);
                good.getFirst().awaitChanges();
                refuseClosing(Operation.WRITE, DeviceException.NO_ADDRESS);
                lost = good.getFirst().hasLost();
                if (lost) {
                    latchLoss(good.getFirst(), among);
                }
            }
            for (MirrorMember one : whole) {
                if (!good.contains(one)) {
                    one.fail(new LateMemberException(
                            one.toString(), Operation.WRITE, memberWait.toMillis()));
                }
            }
            if (good.size() < before.size()) {
                setCurrent(good, lost);
            }
            // Members to which the new label could not be written do not count either.
            return !left.isEmpty() && current().stream().anyMatch(one -> !failed.contains(one));
        } finally {
            recoverLate();
            lock.writeLock().unlock();
        }
    }

    /**
     * Leaves a member out that may have lost acknowledged writes. If all members have a loss, the
     * pool has the loss, and the content of one of them is accepted.
     *
     * @return whether data read from it must not be used
     */
    boolean leaveOutIfLossy(MirrorMember member) throws DeviceException {
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
     * Handles the case that no member has all acknowledged writes. The content of one member is
     * accepted; the loss is counted, and stays unreported until a flush of a caller has failed.
     * Behind the lock.
     */
    private void latchLoss(MirrorMember kept, List<MirrorMember> among) {
        long others = among.stream().filter(one -> one != kept)
                .mapToLong(one -> one.losses() - 1).sum();
        losses += Math.max(acceptContent(kept) + others, 1);
        Log.warn(() -> name + ": no member has all acknowledged writes; the content of " + kept
                + " is used; the next flush fails");
    }

    /**
     * Accepts the content of a member as the pool's. A member that is the destination of a copy may
     * have data that this member has lost since, so the unflushed regions are copied to it again.
     *
     * @return number of its losses
     */
    private long acceptContent(MirrorMember kept) {
        BitSet regions = unflushed.get();
        regionsToRewrite.addUrgent(regions);
        members.stream().filter(member -> member.state() == MemberState.SYNCING)
                .forEach(member -> member.miss(regions));
        return kept.acceptLosses();
    }

    RegionsToRewrite regionsToRewrite() {
        return regionsToRewrite;
    }

    /**
     * Removes a region that was rewritten, unless a member that was written has had a loss since.
     *
     * @param additions number of additions of such regions before
     * @param written the members that were written
     */
    void rewritten(int region, int additions, Set<MirrorMember> written) throws DeviceException {
        for (MirrorMember member : written) {
            // The member is left out, or its content is accepted: then more regions are rewritten.
            leaveOutIfLossy(member);
        }
        lock.readLock().lock();
        try {
            if (written.stream().allMatch(MirrorMember::isCurrent)) {
                regionsToRewrite.remove(region, additions);
            }
        } finally {
            lock.readLock().unlock();
        }
    }

    /** Counts stale reads: earlier reads may have returned data that is gone now. */
    void countStaleReads() {
        lock.writeLock().lock();
        staleReads++;
        lock.writeLock().unlock();
    }

    /** Number of losses of the pool that failed flushes of callers have reported. */
    long reportedLosses() {
        return reportedLosses;
    }

    /**
     * Records a failed flush of a caller: all writes since the last successful flush may be lost.
     */
    void reportLosses() {
        // One of two concurrent calls may leave the lower number: then one more flush fails.
        reportedLosses = losses;
    }

    /**
     * Fails a flush that may not cover all writes before it.
     *
     * @param reported value of {@link #reportedLosses()} when the flush began
     */
    void failIfLossesSince(long reported) throws PoisonedException {
        if (losses > reported) {
            throw new PoisonedException(name, Operation.FLUSH,
                    "unflushed writes may be lost: no member has all of them",
                    null);
        }
    }

    /** True when there is a loss that no flush has reported. */
    boolean hasUnreportedLoss() {
        return losses > reportedLosses;
    }

    /** Starts the recovery of all members that were left out as late. Behind the lock. */
    private void recoverLate() {
        for (MirrorMember member : members) {
            if (member.isLate() && member.state() == MemberState.STALE && !closing
                    && !member.isRecovering()) {
                member.setRecovering(true);
                recovery.accept(member);
            }
        }
    }

    /** Ends a recovery. False: the member was late again, and its recovery continues. */
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
                + "; the others continue, and its data is stale");
    }

    /** Returns the failure of a member that has a loss. */
    static PoisonedException lossOf(MirrorMember member) {
        return new PoisonedException(member.toString(), Operation.READ,
                "its acknowledged, unflushed writes may be lost: its device counts a loss, or"
                        + " a flush of it failed", null);
    }

    /**
     * Number of times that the pool may have lost acknowledged writes, because no member had them
     * all. The count is {@code losses}, the losses that the pool has handled, and, if every current
     * member has a loss that the pool has not handled yet, 1 for the first loss of all members and
     * 1 for each further loss of a member: writes that were acknowledged after an earlier loss may
     * be lost in the further one.
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
     * Number of times that a member was left out after it may have answered reads with old data
     * instead of lost writes, plus the stale reads of the members.
     */
    long staleReads() {
        return staleReads + members.stream().filter(member -> member.device != null)
                .mapToLong(member -> member.device.staleReads()).sum();
    }

    /**
     * Records on the labels of the others that members are not current, while the pool is closed.
     * Behind the lock, alone.
     *
     * @param limit how long to wait for each label
     * @return false: no other member is left, or its label could not be written
     */
    boolean leaveOutClosing(List<MirrorMember> failed, Duration limit) {
        List<MirrorMember> rest = new ArrayList<>(current());
        rest.removeAll(failed);
        if (rest.isEmpty()) {
            return false;
        }
        BitSet slots = new BitSet();
        rest.forEach(member -> slots.set(member.slot));
        failed.forEach(member -> member.become(MemberState.STALE));
        label = label.next(slots);
        PoolLabel now = label;
        return Parallel.runWithin(limit, Operation.WRITE, rest,
                member -> MemberArea.writeLabel(member.device, now.at(member.slot))).isEmpty();
    }

    /**
     * Chooses among failed members: preferably one that has every region, and of several one
     * without late changes; else the first.
     */
    private static List<MirrorMember> keepOne(List<MirrorMember> members) {
        return List.of(Collections.min(members, Comparator
                .comparing((MirrorMember member) -> !member.holdsAll())
                .thenComparing(MirrorMember::isInDoubt)));
    }

    /**
     * Makes some members the current ones, and all other present ones stale. Members whose labels
     * cannot be written are not current either. Behind the lock, alone.
     */
    void setCurrent(List<MirrorMember> chosen) throws DeviceException {
        try {
            setCurrent(chosen, false);
        } finally {
            recoverLate();
        }
    }

    /**
     * Works as {@link #setCurrent(List)}.
     *
     * @param lossCounted whether the losses of the last member are counted already
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
                    // Counted only now, when the member is not read any more. Whatever its failure
                    // is, the member may have lost earlier writes without a report by a flush.
                    staleReads++;
                }
            }
            BitSet slots = new BitSet();
            next.forEach(member -> slots.set(member.slot));
            label = label.next(slots);
            PoolLabel now = label;
            failed = Parallel.runBehind(memberWait, Operation.WRITE, next,
                    member -> MemberArea.writeLabel(member.device, now.at(member.slot)));
            next.removeAll(recordFailures(failed));
            if (next.isEmpty()) {
                MirrorMember last = failed.getFirst().member();
                if (repeated || !last.hasLost()) {
                    members.stream().filter(MirrorMember::isCurrent)
                            .forEach(member -> member.become(MemberState.STALE));
                    throw PoolFailures.of(
                            name, Operation.WRITE, DeviceException.NO_ADDRESS, 0, failed);
                }
                // The flush reported a loss, once: report it to a caller, and write the label
                // again.
                repeated = true;
                if (lossCounted) {
                    acceptContent(last);
                } else {
                    latchLoss(last, List.of(last));
                }
                next.add(last);
            }
        } while (!failed.isEmpty());
        next.forEach(member -> member.become(MemberState.CURRENT));
        promote(next);
    }

    /** Records the failures of members; returns these members. */
    static List<MirrorMember> recordFailures(List<Parallel.Failed<MirrorMember>> failed) {
        failed.forEach(bad -> bad.member().fail(bad.failure()));
        return failed.stream().map(Parallel.Failed::member).toList();
    }

    /**
     * Handles the loss of the source of a copy. In regions that no current member has, the content
     * of the first one counts, and copies of such regions from the lost source are repeated.
     * Regions that any current member has are copied from there, so that no read changes.
     */
    private void promote(List<MirrorMember> current) {
        MirrorMember truth = current.getFirst();
        BitSet lost = truth.missing();
        current.forEach(member -> lost.and(member.missing()));
        if (lost.isEmpty()) {
            return;
        }
        truth.has(lost);
        regionsToRewrite.add(lost);
        for (MirrorMember member : members) {
            if (member != truth && member.receivesWrites()) {
                member.miss(lost);
            }
        }
    }

    /** Puts another device in the slot of a member that is not in use. Behind the lock, alone. */
    void replace(MirrorMember with) {
        List<MirrorMember> changed = new ArrayList<>(members);
        // The sum must never return to a number that a cache has seen.
        MemberDevice before = members.get(with.slot).device;
        staleReads += 1 + (before == null ? 0 : before.staleReads());
        changed.set(with.slot, with);
        members = List.copyOf(changed);
    }
}

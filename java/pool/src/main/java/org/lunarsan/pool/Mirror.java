package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import org.lunarsan.device.BufferPool;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * An open mirror: changes blocks on its members.
 *
 * <p><b>Locks</b>, in this order. A range: one change at a time of any block. The membership: a
 * change of blocks holds it shared from choosing the members to their last answer; a change of
 * members' states holds it alone, also while labels are written. So a write that a member missed is
 * only acknowledged after the labels of the others record this, durably.
 */
final class Mirror {
    /** Limit of bytes moved at once; a longer run of blocks is moved in parts. */
    static final int TRANSFER_BYTES_MAX = 16 << 20;

    private final RangeLocks ranges = new RangeLocks();
    private final Membership membership;
    private final IntentLog intents;
    private final MirrorReader reader = new MirrorReader(this);
    /**
     * Number of failures whose members were not left out yet: marks of the missed changes must
     * stay.
     */
    private final AtomicInteger unrecorded = new AtomicInteger();
    private final BufferPool buffers = new BufferPool();
    /** Held while regions are rewritten; acquired before all other locks. */
    private final ReentrantLock rewriting = new ReentrantLock();
    private final Duration memberWait;
    private volatile CompletableFuture<Void> recoveries = CompletableFuture.completedFuture(null);

    /**
     * Creates a mirror of open members.
     *
     * @param memberWait how long to wait for a member behind another
     */
    Mirror(
            String name,
            PoolLabel label,
            List<MirrorMember> members,
            IntentLog intents,
            Duration memberWait) {
        this.membership = new Membership(
                name, label, members, memberWait, this::recover, intents::unflushed);
        this.intents = intents;
        this.memberWait = memberWait;
    }

    BufferPool buffers() {
        return buffers;
    }

    Duration memberWait() {
        return memberWait;
    }

    /** Starts the recovery of a late member. Behind the membership lock. */
    private void recover(MirrorMember late) {
        recoveries = CompletableFuture.allOf(
                recoveries.exceptionally(failure -> null), Recovery.start(this, late));
    }

    /** Returns a future that completes when no recovery of a late member is running. */
    CompletableFuture<Void> recoveries() {
        return recoveries;
    }

    /**
     * Does work on one member, within the member wait.
     *
     * @throws LateMemberException when it takes longer; the work continues
     */
    void within(
            Operation operation, MirrorMember member, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed =
                Parallel.runWithin(memberWait, operation, List.of(member), work);
        if (!failed.isEmpty()) {
            throw failed.getFirst().failure();
        }
    }

    /** Begins copies to the stale ones of some members; they are written from now on. */
    List<MirrorMember> beginCopies(List<MirrorMember> members) {
        BitSet all = new BitSet();
        all.set(0, intents.regions());
        membership.writeLock().lock();
        try {
            List<MirrorMember> stale = members.stream()
                    .filter(member -> member.state() == MemberState.STALE
                            && membership.members().contains(member))
                    .toList();
            stale.forEach(member -> member.beginCopy(all));
            return stale;
        } finally {
            membership.writeLock().unlock();
        }
    }

    Membership membership() {
        return membership;
    }

    /** True when a member has all of some blocks. */
    boolean holds(MirrorMember member, long address, long blocks) {
        return member.holds(
                intents.region(address), intents.region(address + Math.max(blocks, 1) - 1));
    }

    IntentLog intents() {
        return intents;
    }

    RangeLocks ranges() {
        return ranges;
    }

    MirrorReader reader() {
        return reader;
    }

    /** Writes blocks to all members. */
    void write(long address, int blocks, ByteBuffer data) throws DeviceException {
        MirrorMember.Write write = new MirrorMember.Write(address, data, buffers);
        try {
            change(Operation.WRITE, address, blocks, write);
        } finally {
            write.end();
        }
    }

    /**
     * Changes blocks on all members; returns when no loss of a single member can lose the change.
     */
    void change(
            Operation operation, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        change(operation, address, blocks, membership::receivingWrites, work);
    }

    /**
     * Writes to one member the data that the others have. The region is marked as for any change,
     * since a power cut may leave the members different.
     */
    void rewrite(
            MirrorMember member, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        change(Operation.WRITE, address, blocks,
                () -> member.isCurrent() ? List.of(member) : List.of(), work);
    }

    /** Writes blocks to the current members that miss them. */
    void copyToMissing(long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        change(Operation.WRITE, address, blocks,
                () -> membership.current().stream()
                        .filter(member -> !holds(member, address, blocks)).toList(),
                work);
    }

    private void change(
            Operation operation,
            long address,
            long blocks,
            Supplier<List<MirrorMember>> targets,
            Parallel.Work<MirrorMember> work)
            throws DeviceException {
        RangeLocks.Held held = ranges.acquire(address, blocks);
        try {
            while (!attempt(operation, address, blocks, targets, work)) {
                membership.refuseClosing(operation, address);
            }
        } finally {
            held.release();
        }
    }

    /**
     * Attempts a change. False: it has to be attempted again. It was not sent, because a member
     * could not be marked and was left out, or no member that has it is left.
     */
    private boolean attempt(
            Operation operation,
            long address,
            long blocks,
            Supplier<List<MirrorMember>> targets,
            Parallel.Work<MirrorMember> work)
            throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed = List.of();
        boolean sent = false;
        membership.readLock().lock();
        try {
            membership.refuseClosing(operation, address);
            List<MirrorMember> current = membership.current();
            membership.refuseFailed(operation, address, blocks, current);
            try {
                failed = intents.begin(address, blocks, current);
                if (failed.isEmpty()) {
                    sent = true;
                    failed = Parallel.runBehind(memberWait, operation, targets.get(), work);
                    if (failed.stream().anyMatch(Mirror::isLate)) {
                        work.detached();
                    }
                }
            } finally {
                countUnrecorded(failed);
                intents.end(address, blocks);
            }
        } finally {
            membership.readLock().unlock();
        }
        boolean done = failed.isEmpty() || leaveOutFailed(operation, address, blocks, failed);
        return sent && done;
    }

    private static boolean isLate(Parallel.Failed<MirrorMember> failed) {
        return failed.failure() instanceof LateMemberException;
    }

    /** Counts failures, before the marks of a change can be removed. */
    private void countUnrecorded(List<Parallel.Failed<MirrorMember>> failed) {
        if (!failed.isEmpty()) {
            unrecorded.incrementAndGet();
        }
    }

    /**
     * Leaves failed members out. When no other one is left, returns false if they were only late,
     * as the last member may be, and throws otherwise. A late member that is kept has ended its
     * work by then.
     */
    private boolean leaveOutFailed(
            Operation operation,
            long address,
            long blocks,
            List<Parallel.Failed<MirrorMember>> failed)
            throws DeviceException {
        membership.refuseClosing(operation, address);
        boolean left;
        try {
            left = membership.leaveOut(Membership.recordFailures(failed));
        } catch (DeviceException exception) {
            // The marks stay, because no label records which members missed the change.
            membership.refuseClosing(operation, address);
            DeviceException failure = PoolFailures.of(
                    membership.name(), operation, address, blocks, failed);
            failure.addSuppressed(exception);
            throw failure;
        }
        unrecorded.decrementAndGet();
        if (!left && !failed.stream().allMatch(Mirror::isLate)) {
            throw PoolFailures.of(membership.name(), operation, address, blocks, failed);
        }
        return left;
    }

    /**
     * Flushes for a caller: all writes that had returned are durable, or the flush fails. Also
     * fails once after a loss that no flush has reported, whichever call noticed it.
     */
    void flush() throws DeviceException {
        if (membership.isOpenedReadOnly()) {
            membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            return;
        }
        long reportedLosses = membership.reportedLosses();
        boolean done = false;
        try {
            do {
                rewriteUrgentRegions();
                while (!flushMembers()) {
                    membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
                }
            } while (membership.regionsToRewrite().nextUrgent(0) >= 0);
            membership.failIfLossesSince(reportedLosses);
            done = true;
        } finally {
            if (!done) {
                membership.reportLosses();
            }
        }
    }

    /** Rewrites the regions for which flushes wait. Called without any lock. */
    private void rewriteUrgentRegions() throws DeviceException {
        if (membership.regionsToRewrite().nextUrgent(0) < 0) {
            return;
        }
        rewriting.lock();
        try {
            new RegionRewriter(this).rewriteUrgent();
        } finally {
            rewriting.unlock();
        }
    }

    /** Rewrites a region that is to be copied. Called without any lock. */
    void rewriteRegion(int region) throws DeviceException {
        if (!membership.regionsToRewrite().has(region)) {
            return;
        }
        rewriting.lock();
        try {
            new RegionRewriter(this).rewrite(region);
        } finally {
            rewriting.unlock();
        }
    }

    /** Flushes the members. False: no member is left that has done so. */
    private boolean flushMembers() throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed;
        membership.readLock().lock();
        try {
            membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            List<MirrorMember> current = membership.current();
            membership.refuseFailed(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, current);
            int flushed = intents.beginFlush();
            failed = Parallel.runBehind(memberWait, Operation.FLUSH, membership.receivingWrites(),
                    member -> member.device.flush());
            failed = withLost(failed, current);
            if (failed.isEmpty()) {
                failed = intents.flushed(flushed, this::isSame, current);
            }
            countUnrecorded(failed);
        } finally {
            membership.readLock().unlock();
        }
        return failed.isEmpty()
                || leaveOutFailed(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, failed);
    }

    /**
     * Adds members whose flush succeeded because another flush received the report of their loss.
     */
    private static List<Parallel.Failed<MirrorMember>> withLost(
            List<Parallel.Failed<MirrorMember>> failed, List<MirrorMember> current) {
        List<Parallel.Failed<MirrorMember>> all = new ArrayList<>(failed);
        for (MirrorMember member : current) {
            if (member.hasLost() && failed.stream().noneMatch(bad -> bad.member() == member)) {
                all.add(new Parallel.Failed<>(member, Membership.lossOf(member)));
            }
        }
        return all;
    }

    /**
     * True if all current members have a region, durable after a flush, and none may have missed a
     * change.
     */
    private boolean isSame(int region) {
        return unrecorded.get() == 0
                && !membership.regionsToRewrite().has(region)
                && membership.members().stream().allMatch(
                        member -> !member.isCurrent() || member.holds(region, region));
    }

    /** True if a member missed a change that no label records: the marks for it stay. */
    boolean hasUnrecordedFailure() {
        return unrecorded.get() > 0;
    }

    /**
     * Makes all writes durable and removes all marks except those of regions to be copied. The last
     * flush. Behind the lock, alone.
     *
     * @param limit for the flush, and for the page after it
     * @return members that failed or did not answer: marks stay
     */
    List<Parallel.Failed<MirrorMember>> flushAndRemoveMarks(Duration limit) {
        // Writes that were not flushed are marked.
        if (membership.isOpenedReadOnly() || intents.dirtyCount() == 0) {
            return List.of();
        }
        List<MirrorMember> current = membership.current();
        int flushed = intents.beginFlush();
        List<Parallel.Failed<MirrorMember>> failed = Parallel.runWithin(
                limit, Operation.FLUSH, current, member -> member.device.flush());
        failed = withLost(failed, current);
        return failed.isEmpty()
                ? intents.endLastFlush(flushed, this::isSame, current, limit)
                : failed;
    }
}

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
 * An open mirror: how blocks are changed on its members.
 *
 * <p><b>Locks</b>, in this order. A range: one change at a time of any block. The membership: a
 * change of blocks holds it shared from choosing the members to their last answer; changing what
 * members are good for holds it alone, also while labels are written. So no write is acknowledged
 * that a member missed before the labels of the others say, durably, that it did.
 */
final class Mirror {
    /** The most that is moved at once; a longer run of blocks is moved in parts. */
    static final int TRANSFER_BYTES_MAX = 16 << 20;

    private final RangeLocks ranges = new RangeLocks();
    private final Membership membership;
    private final IntentLog intents;
    private final MirrorReader reader = new MirrorReader(this);
    /** Failures whose members were not left out yet: marks of what they missed must stay. */
    private final AtomicInteger untold = new AtomicInteger();
    private final BufferPool buffers = new BufferPool();
    /** Held while unsecured regions are written anew; before all other locks. */
    private final ReentrantLock securing = new ReentrantLock();
    private final Duration memberWait;
    private volatile CompletableFuture<Void> recoveries = CompletableFuture.completedFuture(null);

    /**
     * Of members that are open.
     *
     * @param memberWait how long a member is waited for behind another
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

    /** Behind the membership lock. */
    private void recover(MirrorMember late) {
        recoveries = CompletableFuture.allOf(
                recoveries.exceptionally(told -> null), Recovery.start(this, late));
    }

    /** Completes when no member is brought up to date any more that was late. */
    CompletableFuture<Void> recoveries() {
        return recoveries;
    }

    /**
     * Does something on one member that no other is waited for: within the time that members have.
     *
     * @throws LateMemberException when it takes longer; it goes on then
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

    /** Begins a copy to those of some members that are stale; they are written from now on. */
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

    /** Changes blocks on all members; returns when the change cannot be lost with one of them. */
    void change(
            Operation operation, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        change(operation, address, blocks, membership::written, work);
    }

    /**
     * Changes blocks on one member to what the others have, as any change: marked before. A cut in
     * the middle may leave them different.
     */
    void rewrite(
            MirrorMember member, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        change(Operation.WRITE, address, blocks,
                () -> member.isCurrent() ? List.of(member) : List.of(), work);
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

    /** False: it was not sent, since a member could not be told of it, and has been left out. */
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
                        work.givenUp();
                    }
                }
            } finally {
                noteUntold(failed);
                intents.end(address, blocks);
            }
        } finally {
            membership.readLock().unlock();
        }
        if (failed.isEmpty()) {
            return true;
        }
        tell(operation, address, blocks, failed);
        return sent;
    }

    private static boolean isLate(Parallel.Failed<MirrorMember> failed) {
        return failed.failure() instanceof LateMemberException;
    }

    /** Before the marks of a change can go. */
    private void noteUntold(List<Parallel.Failed<MirrorMember>> failed) {
        if (!failed.isEmpty()) {
            untold.incrementAndGet();
        }
    }

    /** Leaves out who failed; throws when nobody else is left. */
    private void tell(
            Operation operation,
            long address,
            long blocks,
            List<Parallel.Failed<MirrorMember>> failed)
            throws DeviceException {
        membership.refuseClosing(operation, address);
        boolean left;
        try {
            left = membership.leaveOut(Membership.told(failed));
        } catch (DeviceException untellable) {
            // The marks stay: nobody's label says who missed it.
            membership.refuseClosing(operation, address);
            DeviceException failure = PoolFailures.of(
                    membership.name(), operation, address, blocks, failed);
            failure.addSuppressed(untellable);
            throw failure;
        }
        untold.decrementAndGet();
        if (!left) {
            throw PoolFailures.of(membership.name(), operation, address, blocks, failed);
        }
    }

    /**
     * A flush of a caller: all that returned before is durable, or it fails. It also fails once
     * after a loss of which no flush has told yet, whoever has noticed it.
     */
    void flush() throws DeviceException {
        if (membership.isOpenedToRead()) {
            membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            return;
        }
        long told = membership.lossesTold();
        boolean done = false;
        try {
            do {
                secureUrgent();
                flushMembers();
            } while (membership.unsecured().nextUrgent(0) >= 0);
            membership.refuseLosses(told);
            done = true;
        } finally {
            if (!done) {
                membership.tellLosses();
            }
        }
    }

    /** Secures the regions for which flushes wait. Called without any lock. */
    private void secureUrgent() throws DeviceException {
        if (membership.unsecured().nextUrgent(0) < 0) {
            return;
        }
        securing.lock();
        try {
            new Securing(this).secureUrgent();
        } finally {
            securing.unlock();
        }
    }

    /** Secures a region that is to be copied. Called without any lock. */
    void secure(int region) throws DeviceException {
        if (!membership.unsecured().has(region)) {
            return;
        }
        securing.lock();
        try {
            new Securing(this).secure(region);
        } finally {
            securing.unlock();
        }
    }

    private void flushMembers() throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed;
        membership.readLock().lock();
        try {
            membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            List<MirrorMember> current = membership.current();
            membership.refuseFailed(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, current);
            int flushed = intents.beginFlush();
            failed = Parallel.runBehind(memberWait, Operation.FLUSH, membership.written(),
                    member -> member.device.flush());
            failed = withLost(failed, current);
            if (failed.isEmpty()) {
                failed = intents.flushed(flushed, this::isSame, current);
            }
            noteUntold(failed);
        } finally {
            membership.readLock().unlock();
        }
        if (!failed.isEmpty()) {
            tell(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, failed);
        }
    }

    /** With those whose flush succeeded, since another flush was told of their loss. */
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
     * Whether all current members have a region, durably after a flush, and none of them may have
     * missed a change.
     */
    private boolean isSame(int region) {
        return untold.get() == 0
                && !membership.unsecured().has(region)
                && membership.members().stream().allMatch(
                        member -> !member.isCurrent() || member.holds(region, region));
    }

    /** Whether a member missed a change that no label tells of: marks stay for it. */
    boolean isUntold() {
        return untold.get() > 0;
    }

    /**
     * The last flush: what was written is durable, and no mark stays but of what is to be copied.
     * Behind the lock, alone.
     *
     * @param limit for the flush, and for the page after it
     * @return those that failed or did not answer: marks stay
     */
    List<Parallel.Failed<MirrorMember>> settle(Duration limit) {
        // What was written and not flushed is marked.
        if (membership.isOpenedToRead() || intents.dirtyCount() == 0) {
            return List.of();
        }
        List<MirrorMember> current = membership.current();
        int flushed = intents.beginFlush();
        List<Parallel.Failed<MirrorMember>> failed = Parallel.runWithin(
                limit, Operation.FLUSH, current, member -> member.device.flush());
        failed = withLost(failed, current);
        return failed.isEmpty()
                ? intents.settle(flushed, this::isSame, current, limit)
                : failed;
    }
}

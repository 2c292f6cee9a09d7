package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
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
    private final RangeLocks ranges = new RangeLocks();
    private final Membership membership;
    private final IntentLog intents;
    private final MirrorReader reader = new MirrorReader(this);
    /** Failures whose members were not left out yet: marks of what they missed must stay. */
    private final AtomicInteger untold = new AtomicInteger();

    Mirror(String name, PoolLabel label, List<MirrorMember> members, IntentLog intents) {
        this.membership = new Membership(name, label, members);
        this.intents = intents;
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
        change(Operation.WRITE, address, blocks, new MirrorMember.Write(address, data));
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
                    failed = Parallel.run(operation, targets.get(), work);
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

    void flush() throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed;
        membership.readLock().lock();
        try {
            membership.refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            if (membership.isOpenedToRead()) {
                return;
            }
            List<MirrorMember> current = membership.current();
            membership.refuseFailed(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, current);
            int flushed = intents.beginFlush();
            failed = Parallel.run(
                    Operation.FLUSH, membership.written(), member -> member.device.flush());
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

    /** Whether all current members have a region, and none of them may have missed a change. */
    private boolean isSame(int region) {
        return untold.get() == 0 && membership.members().stream()
                .allMatch(member -> !member.isCurrent() || member.holds(region, region));
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
        return failed.isEmpty()
                ? intents.settle(flushed, this::isSame, current, limit)
                : failed;
    }
}

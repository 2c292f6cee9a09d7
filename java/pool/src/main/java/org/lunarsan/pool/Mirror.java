package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.Operation;

/**
 * An open mirror: what its members are good for, and how blocks are read and written.
 *
 * <p><b>Locks</b>, in this order. A range: one change at a time of any block. The membership: a
 * change of blocks holds it shared from choosing the members to their last answer; changing what
 * members are good for holds it alone, also while labels are written. So no write is acknowledged
 * that a member missed before the labels of the others say, durably, that it did.
 */
final class Mirror {
    private final String name;
    private final RangeLocks ranges = new RangeLocks();
    private final ReentrantReadWriteLock membership = new ReentrantReadWriteLock(true);
    private final IntentLog intents;
    /** By place; changed behind the membership lock. */
    private volatile List<MirrorMember> members;
    /** Without an index; changed behind the membership lock. */
    private volatile PoolLabel label;
    /** Failures whose members were not left out yet: marks of what they missed must stay. */
    private final AtomicInteger untold = new AtomicInteger();
    /** Nobody begins anything, nobody is left out any more. */
    private volatile boolean closing;

    Mirror(String name, PoolLabel label, List<MirrorMember> members, IntentLog intents) {
        this.name = name;
        this.label = label;
        this.members = List.copyOf(members);
        this.intents = intents;
    }

    PoolLabel label() {
        return label;
    }

    List<MirrorMember> members() {
        return members;
    }

    IntentLog intents() {
        return intents;
    }

    RangeLocks ranges() {
        return ranges;
    }

    ReentrantReadWriteLock membership() {
        return membership;
    }

    boolean isClosing() {
        return closing;
    }

    void beginClosing() {
        closing = true;
    }

    List<MirrorMember> current() {
        return members.stream().filter(MirrorMember::isCurrent).toList();
    }

    private List<MirrorMember> written() {
        return members.stream().filter(MirrorMember::isWritten).toList();
    }

    // Reading.

    /** Reads from the member that seems to answer first; from others when it fails. */
    void read(long address, ByteBuffer buffer) throws DeviceException {
        int blocks = buffer.remaining() / label.blockSize();
        List<Parallel.Failed<MirrorMember>> failed = new ArrayList<>();
        BitSet tried = new BitSet();
        while (true) {
            MirrorMember member = choose(address, blocks, tried);
            if (member == null) {
                throw unreadable(address, blocks, failed);
            }
            try {
                member.read(address, buffer.duplicate());
            } catch (DeviceException failure) {
                refuseClosing(Operation.READ, address);
                member.fail(failure);
                failed.add(new Parallel.Failed<>(member, failure));
                tried.set(member.index);
                continue;
            }
            buffer.position(buffer.limit());
            for (Parallel.Failed<MirrorMember> bad : failed) {
                repairOrLeaveOut(bad, address, blocks);
            }
            return;
        }
    }

    private DeviceException unreadable(
            long address, long blocks, List<Parallel.Failed<MirrorMember>> failed) {
        if (failed.isEmpty()) {
            return new MediumException(name, Operation.READ, address, blocks,
                    "no member that has these blocks is left", null);
        }
        return PoolFailures.of(name, Operation.READ, address, blocks, failed);
    }

    /** Null: none that was not tried has these blocks. */
    MirrorMember choose(long address, long blocks, BitSet not) {
        int first = intents.region(address);
        int last = intents.region(address + Math.max(blocks, 1) - 1);
        MirrorMember best = null;
        double least = Double.POSITIVE_INFINITY;
        for (MirrorMember member : members) {
            if (!member.isCurrent() || not.get(member.index) || !member.holds(first, last)) {
                continue;
            }
            double cost = member.cost();
            if (best == null || cost < least) {
                if (best != null) {
                    best.notAsked();
                }
                best = member;
                least = cost;
            } else {
                member.notAsked();
            }
        }
        return best;
    }

    /** A bad block is often good again when it is written; else the member is no good. */
    private void repairOrLeaveOut(
            Parallel.Failed<MirrorMember> bad, long address, int blocks) throws DeviceException {
        MirrorMember member = bad.member();
        if (!(bad.failure() instanceof MediumException) || !repair(member, address, blocks)) {
            leaveOut(List.of(member));
        }
    }

    private boolean repair(MirrorMember member, long address, int blocks) {
        BitSet not = new BitSet();
        not.set(member.index);
        RangeLocks.Held held = ranges.acquire(address, blocks);
        try {
            membership.readLock().lock();
            try {
                MirrorMember source = choose(address, blocks, not);
                if (!member.isCurrent() || source == null) {
                    return true;
                }
                ByteBuffer data = ByteBuffer.allocate(blocks * label.blockSize());
                source.read(address, data);
                member.write(address, data.flip());
                member.read(address, data.clear());
                return true;
            } catch (DeviceException | RuntimeException | OutOfMemoryError still) {
                member.fail(Parallel.failure(member, Operation.WRITE, still));
                return false;
            } finally {
                membership.readLock().unlock();
            }
        } finally {
            held.release();
        }
    }

    // Changing.

    /** Changes blocks on all members; returns when the change cannot be lost with one of them. */
    void change(
            Operation operation, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        RangeLocks.Held held = ranges.acquire(address, blocks);
        try {
            while (!attempt(operation, address, blocks, work)) {
                refuseClosing(operation, address);
            }
        } finally {
            held.release();
        }
    }

    /** False: it was not sent, since a member could not be told of it, and has been left out. */
    private boolean attempt(
            Operation operation, long address, long blocks, Parallel.Work<MirrorMember> work)
            throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed = List.of();
        boolean sent = false;
        membership.readLock().lock();
        try {
            refuseClosing(operation, address);
            List<MirrorMember> current = current();
            refuseFailed(operation, address, blocks, current);
            try {
                failed = intents.begin(address, blocks, current);
                if (failed.isEmpty()) {
                    sent = true;
                    failed = Parallel.run(operation, written(), work);
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
        refuseClosing(operation, address);
        boolean left = leaveOut(told(failed));
        // Not when that threw: nobody's label says who missed it.
        untold.decrementAndGet();
        if (!left) {
            throw PoolFailures.of(name, operation, address, blocks, failed);
        }
    }

    private static List<MirrorMember> told(List<Parallel.Failed<MirrorMember>> failed) {
        failed.forEach(bad -> bad.member().fail(bad.failure()));
        return failed.stream().map(Parallel.Failed::member).toList();
    }

    void flush() throws DeviceException {
        List<Parallel.Failed<MirrorMember>> failed;
        membership.readLock().lock();
        try {
            refuseClosing(Operation.FLUSH, DeviceException.NO_ADDRESS);
            List<MirrorMember> current = current();
            refuseFailed(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, current);
            int flushed = intents.beginFlush();
            failed = Parallel.run(
                    Operation.FLUSH, written(), member -> member.device.flush());
            if (failed.isEmpty()) {
                failed = intents.flushed(flushed, false, this::isSame, current);
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
        return untold.get() == 0 && members.stream()
                .allMatch(member -> !member.isCurrent() || member.holds(region, region));
    }

    /** The last flush: what was written is durable, and no mark stays. Behind the lock, alone. */
    void settle() {
        List<MirrorMember> current = current();
        int flushed = intents.beginFlush();
        if (Parallel.run(Operation.FLUSH, current, member -> member.device.flush()).isEmpty()) {
            intents.flushed(flushed, true, this::isSame, current);
        }
    }

    // Membership.

    /**
     * Members have failed: nothing they have counts from now on. Returns when the labels of the
     * others say so, durably. The last one stays, whatever it did.
     *
     * @return whether a current member is left that did not fail. Others may have been left out
     *     since these failed, for failures of their own: only now it is known who has a change.
     */
    boolean leaveOut(List<MirrorMember> failed) throws DeviceException {
        membership.writeLock().lock();
        try {
            refuseClosing(Operation.WRITE, DeviceException.NO_ADDRESS);
            for (MirrorMember member : failed) {
                if (member.state() == MemberState.SYNCING) {
                    member.become(MemberState.STALE);
                }
            }
            List<MirrorMember> rest = new ArrayList<>(current());
            int before = rest.size();
            rest.removeAll(failed);
            boolean left = !rest.isEmpty();
            if (!left) {
                rest = keepOne();
            }
            if (rest.size() < before) {
                setCurrent(rest);
            }
            // Also those count no more that could not be told of it.
            return left && current().stream().anyMatch(member -> !failed.contains(member));
        } finally {
            membership.writeLock().unlock();
        }
    }

    /** All have failed: one that has every region, else the first. */
    private List<MirrorMember> keepOne() {
        List<MirrorMember> current = current();
        for (MirrorMember member : current) {
            if (member.holdsAll()) {
                return List.of(member);
            }
        }
        return current.isEmpty() ? current : List.of(current.getFirst());
    }

    /**
     * Makes some members the current ones, and all other present ones stale; those that cannot be
     * told are not current either. Behind the lock, alone.
     */
    void setCurrent(List<MirrorMember> chosen) throws DeviceException {
        List<MirrorMember> next = new ArrayList<>(chosen);
        List<Parallel.Failed<MirrorMember>> failed = List.of();
        do {
            for (MirrorMember member : members) {
                if (member.isCurrent() && !next.contains(member)) {
                    member.become(MemberState.STALE);
                }
            }
            if (next.isEmpty()) {
                throw PoolFailures.of(
                        name, Operation.WRITE, DeviceException.NO_ADDRESS, 0, failed);
            }
            BitSet places = new BitSet();
            next.forEach(member -> places.set(member.index));
            label = label.next(places);
            PoolLabel now = label;
            failed = Parallel.run(Operation.WRITE, next,
                    member -> MemberArea.writeLabel(member.device, now.at(member.index)));
            next.removeAll(told(failed));
        } while (!failed.isEmpty());
        next.forEach(member -> member.become(MemberState.CURRENT));
        promote(next);
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
        for (MirrorMember member : members) {
            if (member != truth && member.isWritten()) {
                member.miss(lost);
            }
        }
    }

    /** Puts another device in the place of a member that is of no use. Behind the lock, alone. */
    void replace(MirrorMember with) {
        List<MirrorMember> changed = new ArrayList<>(members);
        changed.set(with.index, with);
        members = List.copyOf(changed);
    }

    private void refuseFailed(
            Operation operation, long address, long blocks, List<MirrorMember> current)
            throws MediumException {
        if (current.isEmpty()) {
            throw new MediumException(name, operation, address, blocks,
                    "no member is current any more; close the pool and open it again", null);
        }
    }

    private void refuseClosing(Operation operation, long address) throws DeviceClosedException {
        if (closing) {
            throw PoolFailures.closed(name, operation, address);
        }
    }
}

package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
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
    /** Changes behind the lock. */
    private volatile long losses;
    /** The only one to read from; null: any. */
    private volatile MirrorMember trusted;
    /** Nobody begins anything, nobody is left out any more. */
    private volatile boolean closing;

    Membership(String name, PoolLabel label, List<MirrorMember> members) {
        this.name = name;
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
     * Members have failed: nothing they have counts from now on. Returns when the labels of the
     * others say so, durably. The last one stays, whatever it did.
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
            lock.writeLock().unlock();
        }
    }

    /**
     * A member may have lost what it had acknowledged: all that have are left out, like those that
     * fail. Where every one has, the loss is one of the pool, and reads keep to the first: each may
     * have kept something else. A label could not be written now, for that flushes, and fails once.
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
            List<MirrorMember> current = current();
            List<MirrorMember> lost = current.stream().filter(MirrorMember::hasLost).toList();
            lost.forEach(each -> each.fail(lossOf(each)));
            if (lost.size() < current.size()) {
                leaveOut(lost);
                return true;
            }
            lost.forEach(MirrorMember::acceptLosses);
            losses++;
            trusted = keepOne().getFirst();
            return member != trusted;
        } finally {
            lock.writeLock().unlock();
        }
    }

    /** What a member that has lost something is told to have failed with. */
    static PoisonedException lossOf(MirrorMember member) {
        return new PoisonedException(member.toString(), Operation.READ,
                "what it had acknowledged and not flushed may be lost: it was restarted or reset",
                null);
    }

    /** Whether reads may go to it: where all have lost something, they keep to one. */
    boolean mayRead(MirrorMember member) {
        MirrorMember only = trusted;
        return only == null || only == member || !only.isCurrent();
    }

    /** How often no member was left that had kept all it had acknowledged. */
    long losses() {
        return losses;
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
        trusted = null;
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
}

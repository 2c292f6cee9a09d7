package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.Operation;

/**
 * Reads from an open mirror: from the member that is likely to answer first, from others when it
 * fails. A bad block is rewritten. Thread-safe.
 */
final class MirrorReader {
    /** Limit of attempts to copy blocks before they are returned. */
    private static final int COPIES_MAX = 3;

    private final Mirror mirror;

    MirrorReader(Mirror mirror) {
        this.mirror = mirror;
    }

    /**
     * Reads from any member that has the blocks. Blocks that other members still miss are copied to
     * them first.
     */
    void read(long address, ByteBuffer buffer) throws DeviceException {
        int begin = buffer.position();
        int blocks = buffer.remaining() / mirror.membership().label().blockSize();
        for (int attempts = 1; isMissed(address, blocks); attempts++) {
            ByteBuffer data = new ReadCopy(mirror, address, blocks).run();
            if (data != null) {
                buffer.put(data);
                return;
            }
            // The only member that has the blocks failed, or is too late for a copy behind locks.
            readAny(address, buffer);
            if (attempts == COPIES_MAX) {
                return;
            }
            buffer.position(begin);
        }
        readAny(address, buffer);
    }

    /** True if a current member misses some of the blocks, and may be written. */
    private boolean isMissed(long address, int blocks) {
        for (MirrorMember member : mirror.membership().members()) {
            if (member.isCurrent() && !mirror.holds(member, address, blocks)) {
                return !mirror.membership().isReadOnly();
            }
        }
        return false;
    }

    private void readAny(long address, ByteBuffer buffer) throws DeviceException {
        int bytes = buffer.remaining();
        int blocks = bytes / mirror.membership().label().blockSize();
        List<Parallel.Failed<MirrorMember>> failed = new ArrayList<>(0);
        MemberReads reads = new MemberReads(mirror, address, bytes);
        BitSet tried = new BitSet();
        while (true) {
            MirrorMember member = choose(address, blocks, tried);
            if (member != null) {
                tried.set(member.slot);
                reads.ask(member);
            } else if (!reads.isAnyUnderWay()) {
                throw unreadable(address, blocks, failed);
            }
            // The last member has no time limit.
            MemberReads.Answer answer = reads.await(member != null);
            if (answer == null) {
                continue;
            }
            if (answer.failure() != null) {
                mirror.membership().refuseClosing(Operation.READ, address);
                answer.member().fail(answer.failure());
                failed.add(new Parallel.Failed<>(answer.member(), answer.failure()));
                continue;
            }
            if (answer.lost() && !mirror.membership().isReadOnly()) {
                mirror.membership().leaveOutIfLossy(answer.member());
                // The content of the member may have been accepted, or a copy may have repaired it
                // since.
                tried.clear(answer.member().slot);
                continue;
            }
            buffer.duplicate().put(answer.data());
            mirror.buffers().give(answer.data());
            buffer.position(buffer.limit());
            boolean allWereLate = member == null && reads.isAnyUnderWay();
            if (!allWereLate) {
                failed.addAll(reads.late());
            }
            for (Parallel.Failed<MirrorMember> bad : failed) {
                repairOrLeaveOut(bad, address, blocks);
            }
            if (allWereLate) {
                Thread.ofVirtual().name("pool read").start(
                        () -> leaveOutLate(reads, address, blocks));
            }
            return;
        }
    }

    /**
     * Leaves out members that stay late. If all members were late, each of the others may take the
     * member wait after the first answer.
     */
    private void leaveOutLate(MemberReads reads, long address, int blocks) {
        while (reads.isAnyUnderWay() && reads.await(true) != null) {
            // The member has answered, after another one.
        }
        reads.late().forEach(bad -> repairOrLeaveOut(bad, address, blocks));
    }

    private DeviceException unreadable(
            long address, long blocks, List<Parallel.Failed<MirrorMember>> failed) {
        String name = mirror.membership().name();
        if (failed.isEmpty()) {
            return new MediumException(name, Operation.READ, address, blocks,
                    "no member that has these blocks is left", null);
        }
        return PoolFailures.of(name, Operation.READ, address, blocks, failed);
    }

    /** Returns the best member that has these blocks and is not in {@code not}; null: none. */
    MirrorMember choose(long address, long blocks, BitSet not) {
        MirrorMember best = null;
        double least = Double.POSITIVE_INFINITY;
        for (MirrorMember member : mirror.membership().members()) {
            if (!member.isCurrent() || not.get(member.slot)
                    || !mirror.holds(member, address, blocks)) {
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

    /**
     * Rewrites a bad block, which often makes it good again; if that fails too, leaves the member
     * out. The caller has its data and gets no error; the failure is in the member's status.
     */
    private void repairOrLeaveOut(
            Parallel.Failed<MirrorMember> bad, long address, int blocks) {
        MirrorMember member = bad.member();
        if (mirror.membership().isReadOnly()) {
            return;
        }
        try {
            if (bad.failure() instanceof MediumException) {
                mirror.rewrite(member, address, blocks, one -> repair(one, address, blocks));
            } else {
                member.fail(bad.failure());
                mirror.membership().leaveOut(List.of(member));
            }
        } catch (DeviceException failure) {
            member.fail(failure);
        }
    }

    /** Rewrites the blocks from another member. Behind the lock of the blocks. */
    private void repair(MirrorMember member, long address, int blocks) throws DeviceException {
        BitSet not = new BitSet();
        not.set(member.slot);
        MirrorMember source = choose(address, blocks, not);
        if (source == null) {
            return;
        }
        ByteBuffer data =
                ByteBuffer.allocate(blocks * mirror.membership().label().blockSize());
        try {
            mirror.within(Operation.READ, source, one -> one.read(address, data.duplicate()));
            // Most devices report a loss only by a flush.
            mirror.within(Operation.FLUSH, source, one -> one.device.checkLosses());
        } catch (DeviceException exception) {
            // Neither member is better than the other: later reads of these blocks fail.
            source.fail(exception);
            return;
        }
        if (source.hasLost()) {
            // The other member may have the lost data in all other blocks.
            return;
        }
        mirror.within(Operation.WRITE, member, one -> one.write(address, data.duplicate()));
        mirror.within(Operation.READ, member, one -> one.read(address, data.duplicate()));
    }
}

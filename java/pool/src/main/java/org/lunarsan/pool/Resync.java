package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;

/**
 * Copies to one member the regions that it misses, concurrently with reads and writes: one piece at
 * a time is locked against changes, and every write goes to the member as well.
 *
 * <p>Runs in a thread of its own. A stale member becomes current at the end, when all of it is
 * durable and the labels record it; if it is interrupted before, the copy begins again from the
 * start.
 */
final class Resync {
    /** Size of the range locked against changes at a time. */
    private static final int PIECE_BYTES = 1 << 20;

    /** Limit of losses of sources while one piece is copied, because a flush may fail each time. */
    private static final int PIECE_LOSSES_MAX = 3;

    private final Mirror mirror;
    private final MirrorMember target;
    /** Number of this copy to the target; a later copy ends this one. */
    private final int number;
    private final CompletableFuture<Void> done = new CompletableFuture<>();
    /** Set when the target was left out, unless a later copy had begun. */
    private boolean isLeftOut;

    private Resync(Mirror mirror, MirrorMember target) {
        this.mirror = mirror;
        this.target = target;
        this.number = target.copies();
    }

    /** Copies the regions that a member misses; the member is in the right state already. */
    static CompletableFuture<Void> start(Mirror mirror, MirrorMember target) {
        Resync resync = new Resync(mirror, target);
        Thread.ofVirtual().name("resync of " + target.device.name()).start(resync::run);
        return resync.done;
    }

    private void run() {
        String pool = mirror.membership().name();
        Log.info(() -> pool + ": a copy to member " + target + " has begun; it is "
                + (target.isCurrent() ? "read where it is done" : "not read before the end"));
        try {
            acceptLosses();
            do {
                copyMissing();
                target.device.flush();
            } while (!finish());
            Log.info(() -> pool + ": the copy to member " + target + " is done; it is current");
            done.complete(null);
        } catch (Throwable failure) {
            done.completeExceptionally(leaveOut(failure));
        }
    }

    /**
     * Accepts earlier losses of a stale member, whose lost data is copied with all other; its
     * device reports them once. Waits for unanswered calls first: none may reach the member after
     * newer data.
     */
    private void acceptLosses() throws DeviceException {
        if (target.isCurrent()) {
            return;
        }
        target.device.awaitPresent();
        try {
            target.device.flush();
        } catch (PoisonedException poisoned) {
            target.fail(poisoned);
        }
        mirror.membership().readLock().lock();
        try {
            refuseStopped(DeviceException.NO_ADDRESS);
            target.acceptLosses();
        } finally {
            mirror.membership().readLock().unlock();
        }
    }

    /** Throws if the copy has to stop. Behind the membership lock. */
    private void refuseStopped(long address) throws DeviceClosedException {
        if (mirror.membership().isClosing() || !target.receivesWrites()
                || target.copies() != number) {
            throw stopped(address);
        }
    }

    /** Copies until no region is missing; further ones may be added meanwhile. */
    private void copyMissing() throws DeviceException {
        for (int region = target.nextMissing(0); region >= 0; region = target.nextMissing(0)) {
            int misses = target.misses();
            copy(region);
            mirror.intents().copied(region);
            target.copied(region, misses);
        }
    }

    private void copy(int region) throws DeviceException {
        PoolLabel label = mirror.membership().label();
        long piece = PIECE_BYTES / label.blockSize();
        long first = region * label.unitBlocks();
        long end = Math.min(first + label.unitBlocks(), label.dataBlocks());
        for (long at = first; at < end; at += piece) {
            int blocks = (int) Math.min(piece, end - at);
            List<MirrorMember> bad = copyRewritten(region, at, blocks);
            for (int losses = 0; !bad.isEmpty(); losses++) {
                if (losses == PIECE_LOSSES_MAX) {
                    throw Membership.lossOf(bad.getFirst());
                }
                // Decides which member's content counts, for all members that miss the region.
                mirror.membership().leaveOut(
                        bad.stream().filter(one -> !one.hasLost()).toList());
                bad = copyRewritten(region, at, blocks);
            }
        }
    }

    /**
     * Copies as {@link #copy(int, long, int)} does, after the region was rewritten in case a flush
     * of it had failed before.
     */
    private List<MirrorMember> copyRewritten(int region, long address, int blocks)
            throws DeviceException {
        List<MirrorMember> bad;
        do {
            mirror.rewriteRegion(region);
            bad = copy(region, address, blocks);
        } while (bad == null);
        return bad;
    }

    /**
     * Returns members that could not be read although no other has the region, or one with a loss;
     * empty: done; null: the region has to be rewritten first.
     */
    private List<MirrorMember> copy(int region, long address, int blocks) throws DeviceException {
        RangeLocks.Held held = mirror.ranges().acquire(address, blocks);
        try {
            mirror.membership().readLock().lock();
            try {
                refuseStopped(address);
                if (target.isCurrent() && target.holds(region, region)) {
                    return List.of();
                }
                if (mirror.membership().regionsToRewrite().has(region)) {
                    return null;
                }
                ByteBuffer data =
                        ByteBuffer.allocate(blocks * mirror.membership().label().blockSize());
                List<MirrorMember> bad = readFromOthers(address, blocks, data);
                if (bad.isEmpty()) {
                    mirror.within(Operation.WRITE, target,
                            one -> one.write(address, data.duplicate().flip()));
                }
                return bad;
            } finally {
                mirror.membership().readLock().unlock();
            }
        } catch (LateMemberException exception) {
            // Before the blocks are unlocked: a later write to the member could be overwritten.
            leaveOut(exception);
            throw exception;
        } finally {
            held.release();
        }
    }

    private DeviceClosedException stopped(long address) {
        String what = mirror.membership().isClosing()
                ? "the pool was closed before the copy was done"
                : "the member failed before the copy was done";
        return new DeviceClosedException(
                target.device.name(), Operation.WRITE, address, 0, what, null);
    }

    /**
     * Returns the members that failed if none could be read and the target is as good; else none.
     */
    private List<MirrorMember> readFromOthers(long address, int blocks, ByteBuffer data)
            throws DeviceException {
        BitSet not = new BitSet();
        not.set(target.slot);
        List<Parallel.Failed<MirrorMember>> failed = new ArrayList<>();
        while (true) {
            MirrorMember source = mirror.reader().choose(address, blocks, not);
            if (source == null && !failed.isEmpty() && target.isCurrent()) {
                return failed.stream().map(Parallel.Failed::member).toList();
            }
            if (source == null) {
                throw failed.isEmpty()
                        ? stopped(address)
                        : PoolFailures.of(target.device.name(), Operation.READ, address, blocks,
                                failed);
            }
            // Separate memory, which a late read continues to use.
            ByteBuffer own = ByteBuffer.allocate(data.remaining());
            try {
                mirror.within(Operation.READ, source,
                        one -> one.read(address, own.duplicate()));
                // Most devices report a loss only by a flush.
                mirror.within(Operation.FLUSH, source, one -> one.device.checkLosses());
                if (source.hasLost()) {
                    // The data is not copied before the loss is reported: the target would be taken
                    // for complete.
                    source.fail(Membership.lossOf(source));
                    return List.of(source);
                }
                data.put(own);
                return List.of();
            } catch (DeviceException failure) {
                if (!(failure instanceof LateMemberException)) {
                    source.fail(failure);
                }
                if (source.hasLost()) {
                    return List.of(source);
                }
                failed.add(new Parallel.Failed<>(source, failure));
                not.set(source.slot);
            }
        }
    }

    /** Finishes the copy. False: the target misses further regions. */
    private boolean finish() throws DeviceException {
        mirror.membership().writeLock().lock();
        try {
            refuseStopped(DeviceException.NO_ADDRESS);
            if (target.nextMissing(0) >= 0) {
                return false;
            }
            if (target.isCurrent()) {
                return true;
            }
            // Covers the writes to the target since the flush above.
            mirror.within(Operation.FLUSH, target, one -> one.device.flush());
            mirror.intents().copyTo(target, mirror.memberWait());
            if (target.hasLost()) {
                throw Membership.lossOf(target);
            }
            List<MirrorMember> current = new ArrayList<>(mirror.membership().current());
            current.add(target);
            mirror.membership().setCurrent(current);
            if (!target.isCurrent()) {
                throw stopped(DeviceException.NO_ADDRESS);
            }
            return true;
        } finally {
            mirror.membership().writeLock().unlock();
        }
    }

    private Throwable leaveOut(Throwable failure) {
        if (isLeftOut || target.copies() != number) {
            // A later copy has begun, or may begin, which this one must not end.
            return failure;
        }
        isLeftOut = true;
        target.fail(Parallel.failure(target, Operation.WRITE, failure));
        try {
            if (!mirror.membership().isClosing()) {
                mirror.membership().leaveOut(List.of(target));
            }
        } catch (DeviceException | RuntimeException | OutOfMemoryError exception) {
            failure.addSuppressed(exception);
        }
        return failure;
    }
}

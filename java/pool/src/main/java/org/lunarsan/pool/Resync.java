package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * Copies to one member the regions that it misses, beside reads and writes: a piece at a time is
 * held against changes, and every write goes to the member as well.
 *
 * <p>Runs in a thread of its own. A stale member becomes current at the end, when all of it is
 * durable and the labels say so; cut off before, it begins again from the start.
 */
final class Resync {
    /** What is held against changes at a time. */
    private static final int PIECE_BYTES = 1 << 20;

    private final Mirror mirror;
    private final MirrorMember target;
    private final CompletableFuture<Void> done = new CompletableFuture<>();
    /** Those that could not be read, though they counted as right. */
    private final List<MirrorMember> sources = new ArrayList<>();

    private Resync(Mirror mirror, MirrorMember target) {
        this.mirror = mirror;
        this.target = target;
    }

    /** Copies what a member misses; it is in the state for that already. */
    static CompletableFuture<Void> start(Mirror mirror, MirrorMember target) {
        Resync resync = new Resync(mirror, target);
        Thread.ofVirtual().name("resync of " + target.device.name()).start(resync::run);
        return resync.done;
    }

    private void run() {
        try {
            for (int region = target.nextMissing(0); region >= 0;
                    region = target.nextMissing(region + 1)) {
                copy(region);
                target.has(region);
            }
            if (!sources.isEmpty()) {
                // It was right as well; whoever cannot be read is not.
                mirror.leaveOut(sources);
            }
            target.device.flush();
            finish();
            done.complete(null);
        } catch (DeviceException | RuntimeException failure) {
            done.completeExceptionally(giveUp(failure));
        }
    }

    private void copy(int region) throws DeviceException {
        PoolLabel label = mirror.label();
        long piece = PIECE_BYTES / label.blockSize();
        long first = region * label.unitBlocks();
        long end = Math.min(first + label.unitBlocks(), label.dataBlocks());
        for (long at = first; at < end; at += piece) {
            copy(at, (int) Math.min(piece, end - at));
        }
    }

    private void copy(long address, int blocks) throws DeviceException {
        RangeLocks.Held held = mirror.ranges().acquire(address, blocks);
        try {
            mirror.membership().readLock().lock();
            try {
                if (mirror.isClosing() || !target.isWritten()) {
                    throw stopped(address);
                }
                ByteBuffer data = ByteBuffer.allocate(blocks * mirror.label().blockSize());
                if (readFromOthers(address, blocks, data)) {
                    target.write(address, data.flip());
                }
            } finally {
                mirror.membership().readLock().unlock();
            }
        } finally {
            held.release();
        }
    }

    private DeviceClosedException stopped(long address) {
        String what = mirror.isClosing()
                ? "the pool was closed before the copy was done"
                : "the member failed before the copy was done";
        return new DeviceClosedException(
                target.device.name(), Operation.WRITE, address, 0, what, null);
    }

    /** False: nobody could read them, but what the target has is as good. */
    private boolean readFromOthers(long address, int blocks, ByteBuffer data)
            throws DeviceException {
        BitSet not = new BitSet();
        not.set(target.index);
        List<Parallel.Failed<MirrorMember>> failed = new ArrayList<>();
        while (true) {
            MirrorMember source = mirror.choose(address, blocks, not);
            if (source == null && !failed.isEmpty() && target.isCurrent()) {
                failed.forEach(bad -> sources.add(bad.member()));
                return false;
            }
            if (source == null) {
                throw failed.isEmpty()
                        ? stopped(address)
                        : PoolFailures.of(target.device.name(), Operation.READ, address, blocks,
                                failed);
            }
            try {
                source.read(address, data.duplicate());
                data.position(data.limit());
                return true;
            } catch (DeviceException failure) {
                source.fail(failure);
                failed.add(new Parallel.Failed<>(source, failure));
                not.set(source.index);
            }
        }
    }

    private void finish() throws DeviceException {
        mirror.membership().writeLock().lock();
        try {
            if (mirror.isClosing() || !target.isWritten()) {
                throw stopped(DeviceException.NO_ADDRESS);
            }
            if (target.isCurrent()) {
                return;
            }
            // What was written to it since the flush above.
            target.device.flush();
            mirror.intents().copyTo(target);
            List<MirrorMember> current = new ArrayList<>(mirror.current());
            current.add(target);
            mirror.setCurrent(current);
            if (!target.isCurrent()) {
                throw stopped(DeviceException.NO_ADDRESS);
            }
        } finally {
            mirror.membership().writeLock().unlock();
        }
    }

    private Exception giveUp(Exception failure) {
        if (failure instanceof DeviceException known) {
            target.fail(known);
        }
        try {
            if (!mirror.isClosing()) {
                mirror.leaveOut(List.of(target));
            }
        } catch (DeviceException worse) {
            failure.addSuppressed(worse);
        }
        return failure;
    }
}

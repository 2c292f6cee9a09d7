package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.lunarsan.device.BufferPool;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.TransferFuture;

/**
 * A member of a mirror: its device, state and statistics. Thread-safe; the state changes only
 * behind the membership lock of the mirror.
 */
final class MirrorMember implements Parallel.Busy {
    /** Weight of a new latency measurement: one part in 2^3. */
    private static final int LATENCY_SHIFT = 3;

    /**
     * Latency of an unused member decays by one part in 2^10, so that the member is tried again.
     */
    private static final int FORGET_SHIFT = 10;

    final int slot;
    /** Null: missing. */
    final MemberDevice device;
    private final long dataStart;
    private final AtomicInteger outstanding = new AtomicInteger();
    private volatile long latencyNanos;
    private volatile MemberState state;
    private volatile String lastFailure = "";
    /** Set when the member was left out, or is to be, because it did not answer in time. */
    private volatile boolean late;
    private volatile boolean recovering;
    /** Number of complete copies begun: only the last one continues. */
    private volatile int copies;
    /** Number of losses of its device that the mirror knows. */
    private volatile long lossesKnown;
    /** Regions in which the member differs from the pool; guarded by itself. */
    private final BitSet missing = new BitSet();
    /** Number of additions to these regions; guarded by them. */
    private int misses;
    private volatile boolean partial;

    /** Creates a member of an open device, or null. */
    MirrorMember(int slot, Device device, MemberState state) {
        this.slot = slot;
        this.device = device == null ? null : new MemberDevice(device);
        this.state = state;
        lossesKnown = device == null ? 0 : device.losses();
        dataStart = device == null ? 0 : PoolLayout.of(device).dataStart();
    }

    MemberState state() {
        return state;
    }

    void become(MemberState now) {
        state = now;
    }

    boolean isCurrent() {
        return state == MemberState.CURRENT;
    }

    /** True when writes go to this member. */
    boolean receivesWrites() {
        return state == MemberState.CURRENT || state == MemberState.SYNCING;
    }

    /** True when acknowledged writes may be lost since, and other members may have them. */
    boolean hasLost() {
        return device.losses() != lossesKnown;
    }

    /** Returns the number of losses of its device that the mirror has handled. */
    long lossesKnown() {
        return lossesKnown;
    }

    /** Returns the number of losses that the mirror has not handled. */
    long losses() {
        return device.losses() - lossesKnown;
    }

    /**
     * Accepts its content after losses that no other member can repair. Returns the number of
     * losses.
     */
    long acceptLosses() {
        long now = device.losses();
        long accepted = now - lossesKnown;
        lossesKnown = now;
        return accepted;
    }

    void fail(DeviceException failure) {
        lastFailure = String.valueOf(failure.getMessage());
        if (failure instanceof LateMemberException) {
            late = true;
        }
    }

    String lastFailure() {
        return lastFailure;
    }

    boolean isLate() {
        return late;
    }

    /** True when a recovery is running; behind the membership lock. */
    boolean isRecovering() {
        return recovering;
    }

    void setRecovering(boolean now) {
        recovering = now;
    }

    /** Begins a complete copy, which ends all earlier ones; behind the membership lock. */
    void beginCopy(BitSet all) {
        copies++;
        late = false;
        miss(all);
        become(MemberState.SYNCING);
    }

    int copies() {
        return copies;
    }

    @Override
    public boolean isEnough() {
        return isCurrent();
    }

    @Override
    public Runnable enter(Operation operation) {
        int began = device.hold(operation);
        return () -> device.leave(began, operation);
    }

    /**
     * True when a detached change has not ended: it may still reach the blocks, after any
     * later one. Behind the membership lock, held alone: no other changes are pending then.
     */
    boolean isInDoubt() {
        return device.hasPendingChanges();
    }

    /** Returns when the member is not in doubt; behind the membership lock, held alone. */
    void awaitChanges() {
        device.awaitChanges();
    }

    void read(long address, ByteBuffer into) throws DeviceException {
        outstanding.incrementAndGet();
        long begin = System.nanoTime();
        try {
            device.read(dataStart + address, into);
            measured(System.nanoTime() - begin);
        } finally {
            outstanding.decrementAndGet();
        }
    }

    /** Records the latency of a read; of two concurrent measurements one may be lost. */
    void measured(long nanos) {
        long before = latencyNanos;
        latencyNanos = before == 0 ? nanos : before + ((nanos - before) >> LATENCY_SHIFT);
    }

    void write(long address, ByteBuffer from) throws DeviceException {
        device.write(dataStart + address, from);
    }

    /**
     * A write of the same data to each member. A late member may continue the write after the
     * caller got its buffer back: an {@code AsyncDevice} releases the buffer, any other device gets
     * a copy from the beginning. Data outside of the heap is always copied: such memory may be
     * freed, or confined to the caller. A failure of the copy fails the call before any member is
     * written, which would be left out for it. For one call.
     */
    static final class Write implements Parallel.Work<MirrorMember> {
        private final long address;
        private final BufferPool buffers;
        /** The caller's heap buffer, or the copy. */
        private final ByteBuffer data;
        /** Null while no copy is needed. */
        private ByteBuffer copy;
        private final List<CompletableFuture<Void>> lent = new ArrayList<>();
        private boolean isDetached;

        Write(long address, ByteBuffer caller, BufferPool buffers) {
            this.address = address;
            this.buffers = buffers;
            copy = caller.isDirect() ? buffers.copyOf(caller) : null;
            data = copy == null ? caller : copy;
        }

        /** Ends the write: no member is waited for any more. */
        void end() {
            if (copy != null && !isDetached) {
                buffers.give(copy);
            }
        }

        @Override
        public void detached() {
            isDetached = true;
            if (data != copy) {
                lent.forEach(TransferFuture::takeBack);
            }
        }

        @Override
        public void run(MirrorMember member) throws DeviceException {
            member.write(address, copy.duplicate());
        }

        @Override
        public CompletableFuture<Void> begin(MirrorMember member) throws DeviceException {
            if (!member.device.isAsync()) {
                if (copy == null) {
                    copy = buffers.copyOf(data);
                }
                return null;
            }
            return member.device.begin(
                    Operation.WRITE, member.dataStart + address, data.duplicate(), lent::add);
        }
    }

    void unmap(long address, long blocks) throws DeviceException {
        device.unmap(dataStart + address, blocks);
    }

    @Override
    public String toString() {
        return device == null ? "member " + slot : device.name();
    }

    /** Returns the expected latency of a read in nanoseconds; 0: not measured, tried first. */
    double cost() {
        return (outstanding.get() + 1.0) * latencyNanos;
    }

    void notAsked() {
        long now = latencyNanos;
        // At least 1, or the value would never fall below 2^10.
        latencyNanos = Math.max(now - Math.max(now >> FORGET_SHIFT, 1), 0);
    }

    /** Adds regions that have to be copied. */
    void miss(BitSet regions) {
        synchronized (missing) {
            missing.or(regions);
            misses++;
            partial = !missing.isEmpty();
        }
    }

    /** Returns the number of additions to the missing regions. */
    int misses() {
        synchronized (missing) {
            return misses;
        }
    }

    /** Records that a region was copied, unless regions were added since the copy began. */
    void copied(int region, int missesBefore) {
        synchronized (missing) {
            if (misses == missesBefore) {
                missing.clear(region);
                partial = !missing.isEmpty();
            }
        }
    }

    /** Accepts the member's content of some regions. */
    void has(BitSet regions) {
        synchronized (missing) {
            missing.andNot(regions);
            partial = !missing.isEmpty();
        }
    }

    BitSet missing() {
        synchronized (missing) {
            return (BitSet) missing.clone();
        }
    }

    /** Returns the first missing region at or after {@code from}; -1: none. */
    int nextMissing(int from) {
        synchronized (missing) {
            return missing.nextSetBit(from);
        }
    }

    /** True when the member has all of some regions. */
    boolean holds(int first, int last) {
        if (!partial) {
            return true;
        }
        int next = nextMissing(first);
        return next < 0 || next > last;
    }

    boolean holdsAll() {
        return !partial;
    }

    MemberStatus status() {
        int count;
        synchronized (missing) {
            count = missing.cardinality();
        }
        boolean copying = state == MemberState.CURRENT && partial;
        return new MemberStatus(slot, device == null ? "" : device.name(),
                copying ? MemberState.SYNCING : state,
                outstanding.get(), latencyNanos, count, lastFailure);
    }
}

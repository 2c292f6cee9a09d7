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
 * A member of a mirror: its device, what it is good for, and how it does. For any thread; its state
 * changes only behind the membership lock of the mirror.
 */
final class MirrorMember implements Parallel.Busy {
    /** A new measurement counts one part in 2^3. */
    private static final int LATENCY_SHIFT = 3;

    /** A member that is not asked seems faster by one part in 2^10, so that it is asked again. */
    private static final int FORGET_SHIFT = 10;

    final int index;
    /** Null: missing. */
    final MemberDevice device;
    private final long dataStart;
    private final AtomicInteger outstanding = new AtomicInteger();
    private volatile long latencyNanos;
    private volatile MemberState state;
    private volatile String lastFailure = "";
    /** It was left out, or is to be, since it did not answer in time. */
    private volatile boolean late;
    private volatile boolean recovering;
    /** How often a copy of all of it was begun: only the last one goes on. */
    private volatile int copies;
    /** Losses of its device that are known to the mirror. */
    private volatile long lossesKnown;
    /** Regions whose content is not that of the pool; guarded by itself. */
    private final BitSet missing = new BitSet();
    /** How often regions were added to them; guarded by them. */
    private int misses;
    private volatile boolean partial;

    /** Of a device that is open, or null. */
    MirrorMember(int index, Device device, MemberState state) {
        this.index = index;
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

    /** Whether writes go to it. */
    boolean isWritten() {
        return state == MemberState.CURRENT || state == MemberState.SYNCING;
    }

    /** What it had acknowledged may be lost since, and others may have it. */
    boolean hasLost() {
        return device.losses() != lossesKnown;
    }

    /** Losses of its device that the mirror has left behind. */
    long lossesKnown() {
        return lossesKnown;
    }

    /** How often it may have lost something that it had acknowledged, and others may have. */
    long losses() {
        return device.losses() - lossesKnown;
    }

    /** Nobody has what it lost: it counts as it is now. How often it had lost something. */
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

    /** Whether a recovery brings it up to date; behind the membership lock. */
    boolean isRecovering() {
        return recovering;
    }

    void setRecovering(boolean now) {
        recovering = now;
    }

    /** Of a copy that begins now, and ends all before it; behind the membership lock. */
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
    public Runnable enter() {
        int began = device.hold();
        return () -> device.leave(began);
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

    /** A read took so long; of two threads at once one may lose its measurement. */
    void measured(long nanos) {
        long before = latencyNanos;
        latencyNanos = before == 0 ? nanos : before + ((nanos - before) >> LATENCY_SHIFT);
    }

    void write(long address, ByteBuffer from) throws DeviceException {
        device.write(dataStart + address, from);
    }

    /**
     * A write of the same data to each member. A late member may go on with it when the caller has
     * its buffer back: one that is an {@code AsyncDevice} gives the buffer up, any other is given a
     * copy from the beginning. Data outside of the heap is copied in any case: such memory may be
     * freed, or confined to the caller. That fails the call before any member is asked, which would
     * be left out for it. For one call.
     */
    static final class Write implements Parallel.Work<MirrorMember> {
        private final long address;
        private final BufferPool buffers;
        /** The caller's, of the heap, or the copy. */
        private final ByteBuffer data;
        /** Null: none is needed so far. */
        private ByteBuffer copy;
        private final List<CompletableFuture<Void>> lent = new ArrayList<>();
        private boolean givenUp;

        Write(long address, ByteBuffer caller, BufferPool buffers) {
            this.address = address;
            this.buffers = buffers;
            copy = caller.isDirect() ? buffers.copyOf(caller) : null;
            data = copy == null ? caller : copy;
        }

        /** No member is waited for any more. */
        void end() {
            if (copy != null && !givenUp) {
                buffers.give(copy);
            }
        }

        @Override
        public void givenUp() {
            givenUp = true;
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
        return device == null ? "member " + index : device.name();
    }

    /** How long a read is to be expected to take, in nanoseconds; 0: asked first. */
    double cost() {
        return (outstanding.get() + 1.0) * latencyNanos;
    }

    void notAsked() {
        long now = latencyNanos;
        // At least 1, or it would never get below 2^10.
        latencyNanos = Math.max(now - Math.max(now >> FORGET_SHIFT, 1), 0);
    }

    /** What a copy has to bring. */
    void miss(BitSet regions) {
        synchronized (missing) {
            missing.or(regions);
            misses++;
            partial = !missing.isEmpty();
        }
    }

    /** How often something was added to what it misses. */
    int misses() {
        synchronized (missing) {
            return misses;
        }
    }

    /** A region was copied to it; that counts unless it misses more since the copy began. */
    void copied(int region, int missesBefore) {
        synchronized (missing) {
            if (misses == missesBefore) {
                missing.clear(region);
                partial = !missing.isEmpty();
            }
        }
    }

    /** What it has in some regions counts as right. */
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

    /** The first region from one on that it does not have; -1: none. */
    int nextMissing(int from) {
        synchronized (missing) {
            return missing.nextSetBit(from);
        }
    }

    /** Whether it has all of some regions. */
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
        return new MemberStatus(index, device == null ? "" : device.name(),
                copying ? MemberState.SYNCING : state,
                outstanding.get(), latencyNanos, count, lastFailure);
    }
}

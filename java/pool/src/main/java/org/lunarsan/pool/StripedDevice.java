package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.Operation;

/**
 * Stripes blocks over 2 to 64 devices: as large as all of them together, and as fast for long runs
 * or many concurrent calls. The loss of one member is the loss of the pool.
 *
 * <p>{@link #create(List, long)} labels the members once; then {@link #of(List)} takes them in any
 * order. All members transfer their parts of a run of blocks at the same time: stripe by stripe
 * from the caller's memory, by futures if the member is an {@link AsyncDevice}, else in virtual
 * threads. Stripes of less than 64 KiB, or 512 KiB in the second case, are gathered in buffers of 1
 * MiB, at most 16 for each pool. A failure names the blocks of the pool; its cause is the failure
 * of the member.
 *
 * <p>Thread-safe. It opens and closes its members.
 */
public final class StripedDevice implements Device {
    /** Limit of bytes sent to the members at once for one call: a longer run is sent in parts. */
    private static final int TRANSFER_BYTES_MAX = 64 << 20;

    private final List<Device> given;
    private final String name;
    /** Time for which closing waits for members; less in tests. */
    Duration closeWait = MemberDevice.CLOSE_WAIT;
    private final ReentrantLock opening = new ReentrantLock();
    private volatile Opened opened;
    /** Geometry of the last opening; null before. */
    private volatile Geometry geometry;

    /** State of an open pool. */
    record Opened(
            PoolLabel label,
            List<MemberDevice> members,
            StripeMap map,
            long dataStart,
            PieceBuffers buffers) {}

    /** The part of a run of blocks on one member, which is one run there too. */
    private record Part(int member, long first, long end) {
        long blocks() {
            return end - first;
        }
    }

    private StripedDevice(List<Device> members) {
        given = List.copyOf(members);
        List<String> names = new ArrayList<>();
        given.forEach(member -> names.add(member.name()));
        name = "striped(" + String.join(",", names) + ")";
    }

    /**
     * Creates a pool of labelled devices.
     *
     * @param members all of them, closed, in any order
     * @return the pool, closed
     */
    public static StripedDevice of(List<? extends Device> members) {
        return new StripedDevice(PoolFormatter.listed(members));
    }

    /**
     * Labels devices as the members of a new pool. Their data is lost.
     *
     * @param members 2 to 64 devices of one block size, closed
     * @param stripeBlocks blocks of a stripe, at least 1; at most 2 GiB
     * @return the id of the pool
     * @throws DeviceOpenException when a device does not fit or is a member of a pool already
     * @throws DeviceException when a device fails
     */
    public static UUID create(List<? extends Device> members, long stripeBlocks)
            throws DeviceException {
        if (stripeBlocks < 1 || stripeBlocks > Integer.MAX_VALUE / Geometry.BLOCK_BYTES_MAX) {
            throw PoolFormatter.refuse(
                    "a pool", "a stripe cannot have " + stripeBlocks + " blocks");
        }
        return PoolFormatter.create(
                PoolKind.STRIPED, PoolFormatter.listed(members), stripeBlocks, false);
    }

    @Override
    public void open() throws DeviceException {
        opening.lock();
        try {
            if (opened != null) {
                throw PoolFormatter.refuse(name, "it is open already");
            }
            Assembly found = Assembly.open(name, PoolKind.STRIPED, given);
            try {
                opened = openMembers(found);
            } finally {
                if (opened == null) {
                    found.closeAll();
                }
            }
        } finally {
            opening.unlock();
        }
    }

    private Opened openMembers(Assembly found) throws DeviceException {
        List<MemberDevice> members = new ArrayList<>();
        for (int slot = 0; slot < found.count(); slot++) {
            if (found.member(slot) == null) {
                throw found.refuse("member " + slot + " of " + found.count()
                        + " is missing: a striped pool needs all members");
            }
            members.add(new MemberDevice(found.member(slot).device()));
        }
        PoolLabel label = found.label();
        geometry = Geometry.of(name, label.blockSize(), label.dataBlocks() * label.count());
        StripeMap map = new StripeMap(label.count(), label.unitBlocks());
        long dataStart = PoolLayout.of(members.getFirst()).dataStart();
        return new Opened(label, members, map, dataStart, new PieceBuffers());
    }

    @Override
    public void close() throws DeviceException {
        opening.lock();
        try {
            Opened was = opened;
            opened = null;
            if (was != null) {
                was.members.forEach(MemberDevice::shut);
                throwFirst(Parallel.runWithin(closeWait, Operation.CLOSE, was.members,
                        Device::close), Operation.CLOSE, DeviceException.NO_ADDRESS, 0);
            }
        } finally {
            opening.unlock();
        }
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public int blockSize() {
        return shape().blockSize();
    }

    @Override
    public long blockCount() {
        return shape().blockCount();
    }

    @Override
    public long losses() {
        return given.stream().mapToLong(Device::losses).sum();
    }

    @Override
    public long staleReads() {
        return given.stream().mapToLong(Device::staleReads).sum();
    }

    @Override
    public boolean unmapReadsZeroes() {
        return given.stream().allMatch(Device::unmapReadsZeroes);
    }

    @Override
    public boolean isReadOnly() {
        return given.stream().anyMatch(Device::isReadOnly);
    }

    /**
     * The status of the pool.
     *
     * @return the status; all members of an open pool are current
     */
    public PoolStatus status() {
        Opened now = opened;
        PoolLabel label = now == null ? null : now.label;
        List<MemberStatus> members = new ArrayList<>();
        for (int slot = 0; slot < given.size(); slot++) {
            String member = now == null ? given.get(slot).name() : now.members.get(slot).name();
            MemberState state = now == null ? MemberState.MISSING : MemberState.CURRENT;
            members.add(new MemberStatus(slot, member, state, 0, 0, 0, ""));
        }
        return new PoolStatus(
                label == null ? new UUID(0, 0) : label.pool(),
                PoolKind.STRIPED,
                now == null ? PoolStatus.Health.CLOSED : PoolStatus.Health.HEALTHY,
                label == null ? 0 : label.generation(),
                members, 0, 0);
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        transfer(Operation.READ, address, buffer);
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        transfer(Operation.WRITE, address, buffer);
    }

    private void transfer(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        Opened now = open(operation, address);
        int blocks = geometry.checkBuffer(name, operation, address, buffer);
        if (operation == Operation.WRITE) {
            PoolFailures.refuseReadOnly(this, operation, address, blocks);
        }
        int most = TRANSFER_BYTES_MAX / geometry.blockSize();
        for (int done = 0; done < blocks; done += most) {
            int bytes = Math.min(blocks - done, most) * geometry.blockSize();
            ByteBuffer part =
                    buffer.slice(buffer.position() + done * geometry.blockSize(), bytes);
            throwFirst(new StripeTransfer(operation, now, address + done, part).run(),
                    operation, address, blocks);
        }
        buffer.position(buffer.limit());
    }

    private List<Part> parts(Opened now, long address, long blocks) {
        List<Part> parts = new ArrayList<>();
        for (int member = 0; member < now.members.size() && blocks > 0; member++) {
            long first = now.map.firstFrom(member, address);
            long end = now.map.firstFrom(member, address + blocks);
            if (first < end) {
                parts.add(new Part(member, first, end));
            }
        }
        return parts;
    }

    @Override
    public void flush() throws DeviceException {
        Opened now = open(Operation.FLUSH, DeviceException.NO_ADDRESS);
        throwFirst(Parallel.run(Operation.FLUSH, now.members, Device::flush), Operation.FLUSH,
                DeviceException.NO_ADDRESS, 0);
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        Opened now = open(Operation.UNMAP, address);
        geometry.checkRange(name, Operation.UNMAP, address, blocks);
        PoolFailures.refuseReadOnly(this, Operation.UNMAP, address, blocks);
        throwFirst(Parallel.run(Operation.UNMAP, parts(now, address, blocks), part -> now.members
                .get(part.member).unmap(now.dataStart + part.first, part.blocks())),
                Operation.UNMAP, address, blocks);
    }

    private Opened open(Operation operation, long address) throws DeviceClosedException {
        Opened now = opened;
        if (now == null) {
            throw PoolFailures.closed(name, operation, address);
        }
        return now;
    }

    private Geometry shape() {
        Geometry shape = geometry;
        if (shape == null) {
            throw new IllegalStateException(name + " was never opened: its size is not known yet");
        }
        return shape;
    }

    private <T> void throwFirst(
            List<Parallel.Failed<T>> failed, Operation operation, long address, long blocks)
            throws DeviceException {
        if (!failed.isEmpty()) {
            throw PoolFailures.of(name, operation, address, blocks, failed);
        }
    }

    @Override
    public String toString() {
        return name;
    }
}

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.Operation;

/**
 * Keeps the same blocks on 2 to 64 devices: it works as long as one of them does.
 *
 * <p><b>Reading.</b> From the member that is likely to answer first, judged by its pending reads
 * and its recent latency. If a member fails, another one is read. A block that could not be read is
 * rewritten from there, and the member is left out if that fails too.
 *
 * <p><b>Writing.</b> To all members at once. A member that fails is left out: the pool is degraded,
 * {@link #status()} reports it, and the write is acknowledged when the labels of the others record,
 * durably, that the member is stale. So no later opening takes it for current. If all fail, the
 * write fails, and one is kept.
 *
 * <p><b>Late members.</b> A member that does not answer is left out
 * {@link MirrorOptions#memberMillisMax()} after another has answered, and is copied to
 * automatically when it answers again. Its late writes may still reach it: if no other member is
 * left, calls wait until these have ended.
 *
 * <p><b>Lost writes.</b> Members with a volatile cache can lose acknowledged writes. A member with
 * a loss is left out. If all have a loss, the content of one is used, {@link #losses()} counts, and
 * the next flush fails. The flush after that first rewrites, from the content of that member, the
 * regions that no successful flush has covered: a device may consider blocks clean that a failed
 * flush did not write.
 *
 * <p><b>Power cuts.</b> Members can differ then where writes were pending. Their regions are marked
 * on the members before the writes are sent, and copied in the background from one member to the
 * others when the pool is opened; until that is done, such a region is read from that one member
 * only, and the blocks read are copied to the others before a read returns them.
 *
 * <p>{@link #create(List)} labels the members once; then {@link #of(List)} takes them in any order.
 * Thread-safe. It opens and closes its members.
 */
public final class MirroredDevice implements Device {
    private final List<Device> given;
    private final boolean openDegraded;
    private final MirrorOptions options;
    private final String name;
    /**
     * Time for which closing waits for pending changes before it closes the members under them; and
     * again for the last flush, for its marks, and for the members to be closed. Less in tests.
     */
    Duration closeWait = MemberDevice.CLOSE_WAIT;
    private final ReentrantLock opening = new ReentrantLock();
    private volatile Mirror mirror;
    /** Geometry of the last opening; null before. */
    private volatile Geometry geometry;
    private volatile CompletableFuture<Void> copying = CompletableFuture.completedFuture(null);

    private MirroredDevice(List<Device> members, boolean openDegraded, MirrorOptions options) {
        given = List.copyOf(members);
        this.openDegraded = openDegraded;
        this.options = Objects.requireNonNull(options, "options");
        List<String> names = new ArrayList<>();
        given.forEach(member -> names.add(member.name()));
        name = "mirrored(" + String.join(",", names) + ")";
    }

    /**
     * Creates a pool of labelled devices. Opening fails when a member that should have all data is
     * missing.
     *
     * @param members all of them, closed, in any order; stale ones may be missing
     * @return the pool, closed, with {@link MirrorOptions#DEFAULT}
     */
    public static MirroredDevice of(List<? extends Device> members) {
        return of(members, MirrorOptions.DEFAULT);
    }

    /**
     * Same as {@link #of(List)}, with options.
     *
     * @param members all of them, closed, in any order; stale ones may be missing
     * @param options options for the members
     * @return the pool, closed
     */
    public static MirroredDevice of(List<? extends Device> members, MirrorOptions options) {
        return new MirroredDevice(PoolFormatter.listed(members), false, options);
    }

    /**
     * Creates a pool of labelled devices that can be opened with members missing. The missing ones
     * are stale from then on: opening them alone elsewhere makes two pools out of one, of which
     * only one can be kept.
     *
     * @param members those present, closed, in any order
     * @return the pool, closed, with {@link MirrorOptions#DEFAULT}
     */
    public static MirroredDevice ofDegraded(List<? extends Device> members) {
        return ofDegraded(members, MirrorOptions.DEFAULT);
    }

    /**
     * Same as {@link #ofDegraded(List)}, with options.
     *
     * @param members those present, closed, in any order
     * @param options options for the members
     * @return the pool, closed
     */
    public static MirroredDevice ofDegraded(
            List<? extends Device> members, MirrorOptions options) {
        return new MirroredDevice(PoolFormatter.listed(members), true, options);
    }

    /**
     * Labels devices as the members of a new pool. Their data is lost, because their contents need
     * not be equal; the pool copies the first to the others when it is opened.
     *
     * @param members 2 to 64 devices of one block size, closed; the smallest determines the size
     * @return the id of the pool
     * @throws DeviceOpenException when a device does not fit or is a member of a pool already
     * @throws DeviceException when a device fails
     */
    public static UUID create(List<? extends Device> members) throws DeviceException {
        return PoolFormatter.create(PoolKind.MIRRORED, PoolFormatter.listed(members), 0, false);
    }

    /**
     * Labels devices as {@link #create(List)} does, and unmaps all blocks of data: all members then
     * hold zeroes, and the pool copies nothing when it is opened. As fast as unmapping is.
     *
     * @param members 2 to 64 devices of one block size, closed, each of which
     *        {@linkplain Device#unmapReadsZeroes() reads zeroes} after an unmap
     * @return the id of the pool
     * @throws DeviceOpenException when a device does not fit or is a member of a pool already
     * @throws DeviceException when a device fails
     */
    public static UUID createErased(List<? extends Device> members) throws DeviceException {
        return PoolFormatter.create(PoolKind.MIRRORED, PoolFormatter.listed(members), 0, true);
    }

    @Override
    public void open() throws DeviceException {
        opening.lock();
        try {
            if (mirror != null) {
                throw PoolFormatter.refuse(name, "it is open already");
            }
            Assembly found = Assembly.open(name, PoolKind.MIRRORED, given);
            boolean done = false;
            try {
                Mirror made = new MirrorOpening(
                        name, found, openDegraded, options.memberWait()).open();
                PoolLabel label = made.membership().label();
                geometry = Geometry.of(name, label.blockSize(), label.dataBlocks());
                copying = copyAll(made, toCopy(made.membership()));
                mirror = made;
                done = true;
            } finally {
                if (!done) {
                    found.closeAll();
                }
            }
        } finally {
            opening.unlock();
        }
    }

    private static List<MirrorMember> toCopy(Membership found) {
        return found.isOpenedReadOnly()
                ? List.of()
                : found.current().stream().filter(member -> !member.holdsAll()).toList();
    }

    /**
     * Closes the pool within five times 10 seconds, whatever its members do: pending calls, the
     * last flush, its marks, the labels when a member failed that flush, and the members.
     *
     * @throws DeviceException when pending calls or the last flush did not end or failed, or a
     *         change that a member missed was not recorded. The message says which, that the next
     *         opening copies the marked regions, and which members are left out until
     *         {@link #resync()}. Also when a member cannot be closed. The pool is closed all the
     *         same
     */
    @Override
    public void close() throws DeviceException {
        opening.lock();
        try {
            Mirror was = mirror;
            if (was == null) {
                return;
            }
            try {
                new MirrorClosing(was, closeWait).run();
            } finally {
                mirror = null;
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

    /**
     * Counts losses that concern every member: a member with a loss of its own is left out. Each
     * loss is reported by a {@link #flush()} that fails, whichever call noticed it.
     */
    @Override
    public long losses() {
        Mirror now = mirror;
        return now == null ? 0 : now.membership().losses();
    }

    /**
     * Counts each member that is left out: its device may have lost writes, and answered reads
     * without them, before the loss was reported.
     */
    @Override
    public long staleReads() {
        Mirror now = mirror;
        return now == null ? 0 : now.membership().staleReads();
    }

    /**
     * True when it holds for all members. Otherwise an unmap does nothing, since members would
     * differ after it.
     */
    @Override
    public boolean unmapReadsZeroes() {
        Mirror now = mirror;
        return now == null
                ? given.stream().allMatch(Device::unmapReadsZeroes)
                : unmaps(now);
    }

    private static boolean unmaps(Mirror now) {
        return now.membership().members().stream()
                .allMatch(member -> member.device == null || member.device.unmapReadsZeroes());
    }

    /** True when a member is read-only: then nothing is written to any of them. */
    @Override
    public boolean isReadOnly() {
        Mirror now = mirror;
        return now == null
                ? given.stream().anyMatch(Device::isReadOnly)
                : now.membership().isReadOnly();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        Mirror now = open(Operation.READ, address);
        int blocks = geometry.checkBuffer(name, Operation.READ, address, buffer);
        int most = Mirror.TRANSFER_BYTES_MAX / geometry.blockSize();
        for (int done = 0; done < blocks; done += most) {
            now.reader().read(address + done, part(buffer, done, Math.min(blocks - done, most)));
        }
        buffer.position(buffer.limit());
    }

    private ByteBuffer part(ByteBuffer buffer, int first, int blocks) {
        int size = geometry.blockSize();
        return buffer.slice(buffer.position() + first * size, blocks * size);
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        Mirror now = open(Operation.WRITE, address);
        int blocks = geometry.checkBuffer(name, Operation.WRITE, address, buffer);
        PoolFailures.refuseReadOnly(this, Operation.WRITE, address, blocks);
        int most = Mirror.TRANSFER_BYTES_MAX / geometry.blockSize();
        for (int done = 0; done < blocks; done += most) {
            int count = Math.min(blocks - done, most);
            now.write(address + done, count, part(buffer, done, count));
        }
        buffer.position(buffer.limit());
    }

    @Override
    public void flush() throws DeviceException {
        open(Operation.FLUSH, DeviceException.NO_ADDRESS).flush();
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        Mirror now = open(Operation.UNMAP, address);
        geometry.checkRange(name, Operation.UNMAP, address, blocks);
        PoolFailures.refuseReadOnly(this, Operation.UNMAP, address, blocks);
        if (blocks > 0 && unmaps(now)) {
            now.change(Operation.UNMAP, address, blocks, member -> member.unmap(address, blocks));
        }
    }

    /**
     * Brings stale members up to date, in the background, concurrently with reads and writes.
     * Running copies continue.
     *
     * @return completes when the members are current, or exceptionally with the first failure;
     *         {@link #status()} reports the progress. A read-only pool copies nothing
     * @throws DeviceClosedException when the pool is not open
     */
    public CompletableFuture<Void> resync() throws DeviceClosedException {
        Mirror now = open(Operation.WRITE, DeviceException.NO_ADDRESS);
        if (isReadOnly()) {
            return CompletableFuture.failedFuture(PoolFailures.readOnly(
                    name, Operation.WRITE, DeviceException.NO_ADDRESS, 0));
        }
        List<MirrorMember> stale = now.beginCopies(now.membership().members());
        CompletableFuture<Void> both =
                CompletableFuture.allOf(
                        copying.exceptionally(failure -> null), copyAll(now, stale));
        copying = both;
        return both.copy();
    }

    private static CompletableFuture<Void> copyAll(Mirror now, List<MirrorMember> members) {
        return CompletableFuture.allOf(members.stream()
                .map(member -> Resync.start(now, member)).toArray(CompletableFuture[]::new));
    }

    /**
     * Returns a future of all running copies, including those begun by opening and those to late
     * members.
     *
     * @return completes when they are done, or exceptionally with the first failure
     */
    public CompletableFuture<Void> copies() {
        Mirror now = mirror;
        return now == null
                ? copying.copy()
                : CompletableFuture.allOf(copying, now.recoveries());
    }

    /**
     * Puts a new device in the slot of a member that is stale or missing; {@link #resync()} then
     * fills it. The pool opens it, and closes it with the others. Later pools have to be created
     * with this device among the members.
     *
     * @param slot the slot, from 0
     * @param device closed, of the same block size, large enough, and no member of a pool
     * @throws DeviceOpenException when the device does not fit, or the slot is in use
     * @throws DeviceException when the device fails
     */
    public void replace(int slot, Device device) throws DeviceException {
        Objects.requireNonNull(device, "device");
        Mirror now = open(Operation.WRITE, DeviceException.NO_ADDRESS);
        if (slot < 0 || slot >= now.membership().members().size()) {
            throw PoolFormatter.refuse(name, "it has no member " + slot);
        }
        now.membership().refuseReadOnly(Operation.WRITE, DeviceException.NO_ADDRESS, 0);
        device.open();
        boolean done = false;
        now.membership().writeLock().lock();
        try {
            refuseClosing(now);
            MirrorMember before = now.membership().members().get(slot);
            if (before.receivesWrites()) {
                throw PoolFormatter.refuse(name, "member " + slot + " is in use");
            }
            if (device.isReadOnly()) {
                throw PoolFormatter.refuse(device.name(), "it is read-only");
            }
            PoolFormatter.refuseLabelled(device);
            PoolLabel label = now.membership().label().at(slot);
            Optional<String> why = label.contradicts(PoolLayout.of(device));
            if (why.isPresent()) {
                throw PoolFormatter.refuse(device.name(), "it does not fit: " + why.get());
            }
            MemberArea.writeLabel(device, label);
            now.membership().replace(new MirrorMember(slot, device, MemberState.STALE));
            // A concurrent close that did not wait for this call may have missed the device.
            refuseClosing(now);
            done = true;
            closeReplaced(before);
        } finally {
            now.membership().writeLock().unlock();
            if (!done) {
                device.close();
            }
        }
    }

    private void closeReplaced(MirrorMember before) throws DeviceException {
        if (before.device != null) {
            var failed = Parallel.runWithin(closeWait, Operation.CLOSE, List.of(before),
                    member -> member.device.close());
            if (!failed.isEmpty()) {
                throw failed.getFirst().failure();
            }
        }
    }

    private void refuseClosing(Mirror now) throws DeviceClosedException {
        if (now.membership().isClosing()) {
            throw PoolFailures.closed(name, Operation.WRITE, DeviceException.NO_ADDRESS);
        }
    }

    /**
     * The status of the pool.
     *
     * @return health of the pool and status of each member
     */
    public PoolStatus status() {
        Mirror now = mirror;
        return now == null ? MirrorStatus.closed() : MirrorStatus.of(now);
    }

    private Mirror open(Operation operation, long address) throws DeviceClosedException {
        Mirror now = mirror;
        if (now == null || now.membership().isClosing()) {
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

    @Override
    public String toString() {
        return name;
    }
}

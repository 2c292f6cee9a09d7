package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.lunarsan.pool.Members.BLOCK;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Writes that the mirror has detached, and that reach their member later. */
@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorLateWriteTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / BLOCK;
    private static final long BOUND_MILLIS = 20;
    /** Longer than every wait of a mirror that does not wait for a late write. */
    private static final long STILL_WAITING_MILLIS = 10 * BOUND_MILLIS;

    private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();
    private final List<MemoryDevice> disks = Members.memories(3);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    private Mirror mirror;
    private Membership membership;
    /** The current members when the last one was left out, before the write left out any. */
    private volatile List<MirrorMember> keptAtOnce;

    @AfterEach
    void close() throws Exception {
        members.forEach(FaultyDevice::heal);
        members.forEach(FaultyDevice::release);
        if (mirror != null) {
            boolean healthy = membership.current().size() == membership.members().size();
            new MirrorClosing(mirror, MemberDevice.CLOSE_WAIT).run();
            if (healthy) {
                Members.assertSame(disks.subList(0, membership.members().size()));
            }
        }
        threads.close();
    }

    private void open(int count) throws DeviceException {
        Members.mirror(disks.subList(0, count));
        openMembers(count);
    }

    private void openMembers(int count) throws DeviceException {
        Assembly found = Assembly.open("pool", PoolKind.MIRRORED,
                List.copyOf(members.subList(0, count)));
        mirror = new MirrorOpening(
                "pool", found, false, Duration.ofMillis(BOUND_MILLIS)).open();
        membership = mirror.membership();
    }

    private void write(long address, int value) throws DeviceException {
        mirror.write(address, 1, ByteBuffer.wrap(filled(value, 1)));
    }

    private byte[] read(long address) throws DeviceException {
        byte[] block = new byte[BLOCK];
        mirror.reader().read(address, ByteBuffer.wrap(block));
        return block;
    }

    private interface Task {
        void run() throws Exception;
    }

    private CompletableFuture<Void> start(Task task) {
        return CompletableFuture.runAsync(() -> {
            try {
                task.run();
            } catch (Exception failure) {
                throw new CompletionException(failure);
            }
        }, threads);
    }

    private MirrorMember member(int slot) {
        return membership.members().get(slot);
    }

    private void hangWrite(int member, long address) {
        members.get(member).inject(
                Fault.of(new Fault.Hang()).on(Operation.WRITE).at(DATA + address, 1).times(1));
    }

    /**
     * Begins a write to block 5 that hangs in the first member and completes on the last one. The
     * last one is left out, as if for a failed read, before the write leaves out the first.
     */
    private CompletableFuture<Void> writeLate(int value) throws Exception {
        int last = membership.members().size() - 1;
        hangWrite(0, 5);
        hangWrite(last, 5);
        CompletableFuture<Void> write = start(() -> write(5, value));
        members.getFirst().awaitHanging(1);
        members.get(last).awaitHanging(1);
        // Waits for the lock before the write does, which holds it shared.
        Thread other = Thread.ofPlatform().start(() -> {
            membership.writeLock().lock();
            try {
                membership.leaveOut(List.of(member(last)));
                keptAtOnce = membership.current();
            } catch (DeviceException closed) {
                // Only if the mirror is closed meanwhile.
            } finally {
                membership.writeLock().unlock();
            }
        });
        while (other.getState() != Thread.State.WAITING) {
            Thread.onSpinWait();
        }
        members.get(last).release();
        return write;
    }

    private void assertWaits(CompletableFuture<Void> call) {
        assertThrows(TimeoutException.class,
                () -> call.get(STILL_WAITING_MILLIS, TimeUnit.MILLISECONDS));
    }

    /**
     * Fault: a write was late on one member while the other one, which had it, was left out for a
     * failed read. The late member was kept, the write failed, and reads returned the old block;
     * then the late write reached it, and reads returned the new one. Later the member was waited
     * for, and the write still failed.
     */
    @Test
    void theLastMemberIsKeptWithoutLateWrites() throws Exception {
        open(2);
        write(5, 1);
        CompletableFuture<Void> late = writeLate(2);
        assertWaits(late);
        members.getFirst().release();
        late.join();
        assertEquals(List.of(member(0)), membership.current());
        byte[] found = read(5);
        assertArrayEquals(found, read(5));
        assertEquals(2, found[0], "the late write has ended");
        write(5, 3);
        assertArrayEquals(filled(3, 1), read(5));
    }

    /**
     * Fault: when another member was left out, one with a late write stayed current beside a
     * complete one.
     */
    @Test
    void aMemberWithALateWriteIsNotKeptBesideAnother() throws Exception {
        open(3);
        write(5, 1);
        CompletableFuture<Void> late = writeLate(2);
        late.join();
        assertEquals(List.of(member(1)), keptAtOnce);
        assertEquals(List.of(member(1)), membership.current());
        assertArrayEquals(filled(2, 1), read(5));
        write(5, 3);
        members.getFirst().release();
        mirror.recoveries().join();
        mirror.beginCopies(List.of(member(2))).forEach(one -> Resync.start(mirror, one).join());
        assertEquals(3, membership.current().size());
        assertArrayEquals(filled(3, 1), read(5));
    }

    /** Goal: of failed members, one that has ended its writes is kept rather than a late one. */
    @Test
    void keepsAMemberThatAnswers() throws Exception {
        open(3);
        write(5, 1);
        members.get(1).inject(Fault.fail().on(Operation.WRITE).at(DATA + 5, 1).times(1));
        CompletableFuture<Void> late = writeLate(2);
        assertThrows(CompletionException.class, late::join);
        assertEquals(List.of(member(1)), membership.current());
    }

    /** Goal: closing does not wait for a late write for ever. */
    @Test
    void closesWhileTheLastMemberIsLate() throws Exception {
        open(2);
        write(5, 1);
        CompletableFuture<Void> late = writeLate(2);
        assertWaits(late);
        assertThrows(DeviceException.class,
                () -> new MirrorClosing(mirror, Duration.ofMillis(BOUND_MILLIS)).run());
        assertThrows(CompletionException.class, late::join);
        mirror = null;
    }

    /**
     * Fault: a copy to a current member that was late unlocked its blocks before it had left the
     * member out. A write that both members then acknowledged was overwritten on one by the older
     * copy.
     */
    @Test
    void aLateCopyKeepsItsBlocksLockedUntilTheMemberIsLeftOut() throws Exception {
        MirroredDevice.create(disks.subList(0, 2));
        openMembers(2);
        assertFalse(member(1).holds(0, 0), "to be copied");
        hangWrite(1, 5);
        membership.readLock().lock();
        CompletableFuture<Void> copy;
        CompletableFuture<Void> locked;
        try {
            copy = Resync.start(mirror, member(1));
            while (!member(1).isLate()) {
                Thread.onSpinWait();
            }
            locked = start(() -> mirror.ranges().acquire(5, 1).release());
            assertWaits(locked);
        } finally {
            membership.readLock().unlock();
        }
        locked.join();
        assertEquals(MemberState.STALE, member(1).state());
        assertThrows(CompletionException.class, copy::join);
        write(5, 2);
        members.get(1).release();
        mirror.recoveries().join();
        assertEquals(2, membership.current().size());
        assertArrayEquals(filled(2, 1), read(5));
    }
}

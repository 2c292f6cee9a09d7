package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.BLOCKS;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Members that fail, are left out, return, and are copied to. */
class MirroredDeviceTest {
    private final List<MemoryDevice> disks = Members.memories(2);
    private List<FaultyDevice> members;
    private MirroredDevice pool;

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        open(disks);
    }

    private void open(List<MemoryDevice> on) throws Exception {
        members = Members.faulty(on, 1);
        // Without a time limit: a hanging member hangs until the test continues.
        pool = MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
        pool.open();
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
    }

    private FaultyDevice member(int slot) {
        return members.get(slot);
    }

    private MemberState state(int slot) {
        return pool.status().members().get(slot).state();
    }

    private PoolStatus.Health health() {
        return pool.status().health();
    }

    private static Fault lost() {
        return Fault.of(new Fault.Fail(DisconnectedException::new));
    }

    /** Goal: a write that one member misses succeeds, and after a restart that member is stale. */
    @Test
    void aMemberThatMissedAWriteStaysStale() throws Exception {
        pool.write(5, filled(1, 1));
        member(0).inject(lost().on(Operation.WRITE).at(2048, BLOCKS));
        pool.write(5, filled(2, 1));
        assertEquals(PoolStatus.Health.DEGRADED, health());
        assertEquals(MemberState.STALE, state(0));
        // The state after a crash, without closing.
        List<MemoryDevice> left = Members.snapshots(disks);
        pool.close();
        open(left);
        assertEquals(MemberState.STALE, state(0));
        for (int step = 0; step < 20; step++) {
            assertEquals(2, Members.read(pool, 5, 1)[0]);
        }
        assertEquals(0, member(0).seen(Operation.WRITE));
    }

    /** Goal: a write is acknowledged only when the survivor's label records who missed it. */
    @Test
    void acknowledgesWhenTheLabelIsDurable() throws Exception {
        pool.write(0, filled(1, 1));
        member(0).inject(lost().on(Operation.WRITE).at(2048, BLOCKS));
        member(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(0, 8).times(1));
        CompletableFuture<Void> write = CompletableFuture.runAsync(() -> {
            try {
                pool.write(1, filled(2, 1));
            } catch (DeviceException failure) {
                throw new CompletionException(failure);
            }
        });
        member(1).awaitHanging(1);
        assertFalse(write.isDone());
        // After a crash here both members are equally good; the write was never acknowledged.
        List<MemoryDevice> killed = Members.snapshots(disks);
        member(1).release();
        write.join();
        try (MirroredDevice after = MirroredDevice.of(killed)) {
            after.open();
            after.copies().join();
            assertEquals(PoolStatus.Health.HEALTHY, after.status().health());
        }
        Members.assertSame(killed);
    }

    /**
     * Goal: after a crash between the writes to two members, both are equal after the next start.
     */
    @Test
    void membersAgreeAfterAKillBetweenWrites() throws Exception {
        for (int slow = 0; slow < 2; slow++) {
            pool.write(100, filled(1, 4));
            pool.flush();
            Fault hang = Fault.of(new Fault.Hang()).on(Operation.WRITE).at(2048, BLOCKS).times(1);
            member(slow).inject(hang);
            CompletableFuture<Void> write =
                    AsyncDevice.of(pool).writeAsync(100, ByteBuffer.wrap(filled(2, 4)));
            member(slow).awaitHanging(1);
            while (member(1 - slow).seen(Operation.WRITE) < member(slow).seen(Operation.WRITE)) {
                Thread.onSpinWait();
            }
            List<MemoryDevice> killed = Members.snapshots(disks);
            member(slow).release();
            write.join();
            try (MirroredDevice after = MirroredDevice.of(killed)) {
                after.open();
                byte first = Members.read(after, 100, 1)[0];
                after.copies().join();
                for (int step = 0; step < 10; step++) {
                    assertEquals(first, Members.read(after, 100, 1)[0], "it does not change");
                }
                assertEquals(PoolStatus.Health.HEALTHY, after.status().health());
            }
            Members.assertSame(killed);
        }
    }

    /** Goal: two writes to the same block reach all members in the same order. */
    @Test
    void overlappingWritesKeepOneOrder() throws Exception {
        pool.write(100, filled(1, 1));
        member(0).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(2148, 1).times(1));
        AsyncDevice async = AsyncDevice.of(pool);
        CompletableFuture<Void> first = async.writeAsync(100, ByteBuffer.wrap(filled(2, 1)));
        member(0).awaitHanging(1);
        CompletableFuture<Void> second = async.writeAsync(100, ByteBuffer.wrap(filled(3, 1)));
        // Other writes continue meanwhile; enough of them for the second one to end if it did not
        // wait.
        for (int step = 0; step < 1000 && !second.isDone(); step++) {
            pool.write(step % 90, filled(4, 1));
        }
        assertFalse(second.isDone());
        member(0).release();
        first.join();
        second.join();
        assertEquals(3, Members.read(pool, 100, 1)[0]);
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: reads that fail on one member are served by the other, and the first is left out. */
    @Test
    void readsFromTheOtherMember() throws Exception {
        pool.write(0, filled(7, 64));
        member(0).inject(lost().on(Operation.READ));
        for (int step = 0; step < 30; step++) {
            assertArrayEquals(filled(7, 64), Members.read(pool, 0, 64));
        }
        assertEquals(MemberState.STALE, state(0));
        assertTrue(pool.status().members().get(0).lastFailure().contains("injected"));
    }

    /** Goal: an unreadable block is rewritten, and the member stays. */
    @Test
    void repairsBadBlocks() throws Exception {
        pool.write(0, filled(7, 8));
        for (FaultyDevice member : members) {
            member.inject(Fault.fail().on(Operation.READ).at(2048 + 3, 1).times(1));
        }
        byte[] found = new byte[512];
        assertThrows(MediumException.class, () -> pool.read(3, found), "bad on both");
        assertEquals(PoolStatus.Health.HEALTHY, health(), "neither member is better");
        long writes = member(0).seen(Operation.WRITE);
        member(0).inject(Fault.fail().on(Operation.READ).at(2048 + 3, 1).times(1));
        while (member(0).seen(Operation.WRITE) == writes) {
            pool.read(3, found);
            assertEquals(7, found[0]);
        }
        assertEquals(PoolStatus.Health.HEALTHY, health());
    }

    /** Goal: when all members fail, the call fails, and one member is kept. */
    @Test
    void keepsTheLastMemberWhenAllFail() throws Exception {
        pool.write(9, filled(1, 1));
        members.forEach(member -> member.inject(Fault.fail().on(Operation.WRITE).at(2057, 1)));
        MediumException failure =
                assertThrows(MediumException.class, () -> pool.write(9, filled(2, 1)));
        assertEquals(9, failure.address());
        assertEquals(PoolStatus.Health.DEGRADED, health());
        assertEquals(1, Members.read(pool, 9, 1)[0]);
        pool.write(10, filled(3, 1));
        assertThrows(MediumException.class, () -> pool.write(9, filled(2, 1)));
        assertEquals(PoolStatus.Health.DEGRADED, health());
    }

    /** Goal: a member whose flush fails is left out, and the flush succeeds by the other. */
    @Test
    void flushesTheOtherMember() throws Exception {
        pool.write(9, filled(1, 1));
        member(1).inject(Fault.fail().on(Operation.FLUSH));
        pool.flush();
        assertEquals(MemberState.STALE, state(1));
        assertEquals(1, Members.read(pool, 9, 1)[0]);
    }

    /** Goal: a stale member is copied to during writes, and has all data then. */
    @Test
    void resyncsUnderLoad() throws Exception {
        member(0).inject(lost().on(Operation.WRITE).at(2048, BLOCKS).times(1));
        pool.write(0, filled(1, BLOCKS));
        assertEquals(MemberState.STALE, state(0));
        // The copy is held in the middle, until reads and writes were seen to continue.
        member(0).heal();
        member(0).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(2048 + 500, 1).times(1));
        CompletableFuture<Void> copy = pool.resync();
        member(0).awaitHanging(1);
        assertEquals(PoolStatus.Health.SYNCING, health());
        assertTrue(pool.status().members().get(0).regionsToCopy() > 0);
        pool.write(0, filled(2, 10));
        pool.write(900, filled(3, 10));
        assertEquals(2, Members.read(pool, 0, 1)[0]);
        assertEquals(1, Members.read(pool, 500, 1)[0]);
        assertFalse(copy.isDone());
        member(0).release();
        List<CompletableFuture<Void>> writers = new ArrayList<>();
        for (int writer = 0; writer < 8; writer++) {
            int value = writer + 10;
            writers.add(CompletableFuture.runAsync(() -> {
                try {
                    for (int step = 0; step < 100; step++) {
                        pool.write((value * 131 + step * 37) % 1000, filled(value, 5));
                    }
                } catch (DeviceException failure) {
                    throw new CompletionException(failure);
                }
            }));
        }
        copy.join();
        writers.forEach(CompletableFuture::join);
        assertEquals(PoolStatus.Health.HEALTHY, health());
        pool.close();
        Members.assertSame(disks);
        open(disks);
        assertEquals(PoolStatus.Health.HEALTHY, health());
    }

    /** Goal: an interrupted copy leaves the member stale, and can be started again. */
    @Test
    void resyncCanBeBegunAgain() throws Exception {
        member(1).inject(lost().on(Operation.WRITE).at(2048, BLOCKS).times(1));
        pool.write(0, filled(1, 700));
        member(1).inject(lost().on(Operation.WRITE).at(2048 + 600, 1).times(1));
        CompletableFuture<Void> failed = pool.resync();
        assertThrows(CompletionException.class, failed::join);
        assertEquals(MemberState.STALE, state(1));
        member(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(2048 + 600, 1).times(1));
        CompletableFuture<Void> cut = pool.resync();
        member(1).awaitHanging(1);
        List<MemoryDevice> killed = Members.snapshots(disks);
        member(1).release();
        cut.join();
        assertEquals(PoolStatus.Health.HEALTHY, health());
        pool.close();
        open(killed);
        assertEquals(MemberState.STALE, state(1), "killed in the middle of the copy");
        pool.resync().join();
        assertEquals(PoolStatus.Health.HEALTHY, health());
        pool.close();
        Members.assertSame(killed);
    }

    /** Goal: a new device replaces a lost one, and is a member from then on. */
    @Test
    void replacesAMember() throws Exception {
        pool.write(0, filled(4, 100));
        pool.close();
        pool = MirroredDevice.ofDegraded(List.of(disks.get(0)));
        pool.open();
        MemoryDevice fresh = Members.memory("fresh", 512, BLOCKS + 50);
        assertThrows(DeviceException.class, () -> pool.replace(0, fresh), "it is in use");
        assertThrows(DeviceException.class, () -> pool.replace(1, disks.get(1)), "a member");
        assertThrows(DeviceException.class,
                () -> pool.replace(1, Members.memory("small", 512, BLOCKS - 1)));
        pool.replace(1, fresh);
        pool.resync().join();
        assertEquals(PoolStatus.Health.HEALTHY, health());
        pool.close();
        pool = MirroredDevice.of(List.of(fresh, disks.get(0)));
        pool.open();
        assertEquals(PoolStatus.Health.HEALTHY, health());
        pool.close();
        Members.assertSame(List.of(disks.get(0), fresh));
        // The old member has an older generation, and its slot is taken.
        pool = MirroredDevice.of(List.of(disks.get(0), disks.get(1)));
        pool.open();
        assertEquals(MemberState.STALE, state(1));
    }

    /** Goal: the slower member costs more, and less and less while it is not used. */
    @Test
    void prefersMembersOfLowLatency() {
        MirrorMember fast = new MirrorMember(0, disks.get(0), MemberState.CURRENT);
        MirrorMember slow = new MirrorMember(1, member(1), MemberState.CURRENT);
        fast.measured(1_000);
        slow.measured(1_000);
        assertEquals(fast.cost(), slow.cost());
        slow.measured(9_000);
        assertEquals(2_000, slow.status().latencyNanos(), "an eighth of what is new");
        assertTrue(fast.cost() < slow.cost());
        int asked = 0;
        while (slow.cost() >= fast.cost() && asked < 10_000) {
            slow.notAsked();
            asked++;
        }
        assertTrue(asked > 100 && asked < 10_000, "asked again after " + asked);
    }

    /** Goal: a pending read raises the cost of its member until the read ends. */
    @Test
    void countsPendingReads() throws Exception {
        MirrorMember busy = new MirrorMember(1, member(1), MemberState.CURRENT);
        busy.measured(1_000);
        member(1).inject(Fault.of(new Fault.Hang()).on(Operation.READ).times(1));
        Thread reader = Thread.ofVirtual().start(() -> {
            try {
                busy.read(0, ByteBuffer.allocate(512));
            } catch (DeviceException failure) {
                throw new AssertionError(failure);
            }
        });
        member(1).awaitHanging(1);
        assertEquals(2_000, busy.cost());
        member(1).release();
        reader.join();
        assertEquals(0, busy.status().outstanding());
    }

    /** Goal: a hanging member does not prevent the pool from being closed. */
    @Test
    void closesBesideAMemberThatHangs() throws Exception {
        member(0).inject(Fault.of(new Fault.Hang()).on(Operation.READ).at(2048, BLOCKS));
        member(1).inject(Fault.of(new Fault.Hang()).on(Operation.READ).at(2048, BLOCKS));
        CompletableFuture<Void> read =
                AsyncDevice.of(pool).readAsync(0, ByteBuffer.allocate(512));
        while (pool.status().members().stream().mapToInt(MemberStatus::outstanding).sum() == 0) {
            Thread.onSpinWait();
        }
        pool.close();
        assertThrows(CompletionException.class, read::join);
        Device again = MirroredDevice.of(disks);
        again.open();
        again.close();
    }

    /** Goal: marks are set once for many writes, and removed when a region is idle. */
    @Test
    void marksRegionsLazily() throws Exception {
        pool.write(0, filled(1, 1));
        assertEquals(1, pool.status().dirtyRegions());
        long flushes = member(0).seen(Operation.FLUSH);
        for (int step = 0; step < 50; step++) {
            pool.write(step, filled(1, 1));
        }
        assertEquals(flushes, member(0).seen(Operation.FLUSH), "marked already");
        pool.flush();
        assertEquals(1, pool.status().dirtyRegions(), "still warm");
        pool.flush();
        assertEquals(0, pool.status().dirtyRegions());
        pool.write(0, filled(1, BLOCKS));
        assertEquals(pool.status().regions(), pool.status().dirtyRegions());
        pool.close();
        pool.open();
        assertEquals(0, pool.status().dirtyRegions());
    }
}

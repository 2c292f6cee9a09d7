package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;

/**
 * Members that count no losses: one failed flush is the only report of a loss. No flush by the pool
 * itself may hide that report from the caller.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorFlushOnlyLossTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** A block in an unmarked region: a write there flushes the marks first. */
    private static final int UNMARKED = 600;

    private final List<MemoryDevice> disks = Members.memories(3);
    private List<VolatileDevice> caches;
    private List<FaultyDevice> members;
    private MirroredDevice pool;

    @BeforeEach
    void create() throws Exception {
        Members.mirror(disks.subList(0, 2));
        open(disks.subList(0, 2));
        pool.write(0, filled(1, 1));
        pool.flush();
    }

    /** Opens a mirror of labelled disks that waits for its members without a limit. */
    private void open(List<MemoryDevice> devices) throws DeviceException {
        caches = devices.stream().map(VolatileDevice::withoutCount).toList();
        members = Members.faulty(caches, 1);
        pool = MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
        pool.open();
    }

    @AfterEach
    void close() {
        members.forEach(FaultyDevice::release);
        Members.drop(pool);
    }

    private int first() throws DeviceException {
        return Members.read(pool, 0, 1)[0];
    }

    private void leaveOut(int member) throws DeviceException {
        members.get(member).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        pool.write(8, filled(4, 1));
        assertEquals(MemberState.STALE, pool.status().members().get(member).state());
        pool.write(0, filled(1, 1));
        pool.flush();
    }

    private void assertToldOnce() throws DeviceException {
        assertTrue(pool.losses() > 0, "the loss is counted");
        assertEquals(1, first());
        assertThrows(PoisonedException.class, pool::flush);
        pool.flush();
    }

    /** Fault: the flush of an intent page consumed the only report of a loss of all members. */
    @Test
    void theMarkOfAWriteHidesNoLoss() throws Exception {
        pool.write(0, filled(2, 1));
        for (VolatileDevice cache : caches) {
            cache.cutPower();
        }
        assertThrows(PoisonedException.class, () -> pool.write(UNMARKED, filled(4, 1)));
        assertToldOnce();
    }

    /** Fault: the same for the flush of a label that records the failure of the other member. */
    @Test
    void theLabelOfAnotherMemberHidesNoLoss() throws Exception {
        pool.write(0, filled(2, 1));
        caches.get(1).cutPower();
        members.get(0).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        pool.write(8, filled(4, 1));
        assertToldOnce();
        assertEquals(4, Members.read(pool, 8, 1)[0]);
    }

    /**
     * Fault: the only current member had an unreported loss; its content was copied to the other
     * one, its label flush reported the loss, and the other stayed as the only member, seemingly
     * without a loss.
     */
    @Test
    void aCopyFromTheOnlyMemberHidesNoLoss() throws Exception {
        leaveOut(1);
        pool.write(0, filled(2, 1));
        caches.get(0).cutPower();
        pool.resync().join();
        assertToldOnce();
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
    }

    /**
     * Fault: a member was copied to from one that had lost a write, though a third had it; the two
     * that stayed differed. The message claimed a restart or reset of the member, which was not
     * known.
     */
    @Test
    void aCopyDoesNotReadLostWrites() throws Exception {
        Members.drop(pool);
        List<MemoryDevice> fresh = Members.memories(3);
        Members.mirror(fresh);
        open(fresh);
        leaveOut(2);
        pool.write(0, filled(2, 1));
        caches.get(0).cutPower();
        pool.resync().join();
        pool.flush();
        MemberStatus lost = pool.status().members().get(0);
        assertEquals(MemberState.STALE, lost.state());
        assertTrue(lost.lastFailure().contains("counts a loss, or a flush of it failed"),
                lost::lastFailure);
        for (int read = 0; read < 20; read++) {
            assertEquals(2, first(), "read " + read);
        }
        Members.drop(pool);
        Members.assertSame(fresh.subList(1, 3));
    }

    /**
     * Fault: an unreadable block was rewritten from a member that had lost it; then that member was
     * left out, and the flush succeeded.
     */
    @Test
    void aRepairHidesNoLoss() throws Exception {
        pool.write(0, filled(2, 1));
        caches.get(0).cutPower();
        members.get(1).inject(Fault.fail().on(Operation.READ).at(DATA, 1).times(1));
        while (members.get(1).fired() == 0) {
            first();
        }
        pool.flush();
        assertEquals(2, first());
    }

    /**
     * Fault: after a power cut, the copy of a marked region overwrote a newer write on a current
     * member with the content of a source that had lost it; the flush succeeded.
     */
    @Test
    void theCopyOfAMarkedRegionHidesNoLoss() throws Exception {
        pool.write(UNMARKED, filled(1, 1));
        List<MemoryDevice> cut = Members.snapshots(disks.subList(0, 2));
        Members.drop(pool);
        caches = cut.stream().map(VolatileDevice::withoutCount).toList();
        members = Members.faulty(caches, 1);
        // The copy stops in the first of the marked regions.
        members.get(0).inject(Fault.of(new Fault.Hang()).on(Operation.READ).at(DATA, 1).times(1));
        pool = MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
        pool.open();
        CompletableFuture<Void> copies = pool.copies();
        members.get(0).awaitHanging(1);
        pool.write(UNMARKED, filled(2, 1));
        caches.get(0).cutPower();
        members.get(0).release();
        copies.join();
        pool.flush();
        assertEquals(2, Members.read(pool, UNMARKED, 1)[0]);
    }

    /** Goal: a copy from a member whose flushes always fail ends, instead of looping for ever. */
    @Test
    void aCopyFromAMemberThatCannotFlushFails() throws Exception {
        leaveOut(1);
        pool.write(0, filled(2, 1));
        members.get(0).inject(Fault.fail().on(Operation.FLUSH));
        CompletionException failed =
                assertThrows(CompletionException.class, () -> pool.resync().join());
        assertTrue(failed.getCause() instanceof PoisonedException, () -> "not " + failed);
        assertTrue(pool.losses() > 0, "the failed flushes count");
    }
}

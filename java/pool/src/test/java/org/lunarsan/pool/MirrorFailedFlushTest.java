package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.lunarsan.pool.Members.filled;

import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/**
 * All members fail a flush, and call the blocks clean that they did not write: reads find the
 * blocks, no later flush writes them, and a power cut undoes them in silence. A mirror keeps one
 * such member as it is.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorFailedFlushTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** In the last of the regions. */
    private static final int LAST = 1000;

    private final List<MemoryDevice> disks = Members.memories(2);
    private final List<VolatileDevice> caches = disks.stream().map(VolatileDevice::new).toList();
    private final List<FaultyDevice> members = Members.faulty(caches, 1);
    private MirroredDevice pool =
            MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        pool.open();
        pool.write(0, filled(1, 1));
        pool.write(LAST, filled(1, 1));
        pool.flush();
    }

    @AfterEach
    void close() {
        members.forEach(FaultyDevice::release);
        Members.drop(pool);
    }

    private int block(int address) throws DeviceException {
        return Members.read(pool, address, 1)[0];
    }

    /** Block 0 holds 2 in the caches of all members, and 1 on their media. */
    private void failFlush() {
        caches.forEach(VolatileDevice::failNextFlush);
        assertThrows(DeviceException.class, pool::flush);
    }

    /** The second flush takes the marks away. */
    private void flushTwice() throws DeviceException {
        pool.flush();
        pool.flush();
    }

    private void cutPower() throws DeviceException {
        for (VolatileDevice cache : caches) {
            cache.cutPower();
        }
    }

    private void assertSameAfterClosing() throws DeviceException {
        pool.close();
        Members.assertSame(disks);
    }

    /**
     * Fault: the member that was kept never wrote the block, its mark was taken away, and a power
     * cut undid it: members differed for good, and each read found another version.
     */
    @Test
    void theMemberThatIsKeptHasItWritten() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        assertEquals(2, block(0));
        pool.resync().join();
        flushTwice();
        cutPower();
        assertEquals(2, block(0));
        assertSameAfterClosing();
    }

    /** Fault: likewise before another member was copied to: a flush had succeeded. */
    @Test
    void aFlushThatSucceedsCoversWhatTheOneBeforeDidNotWrite() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        pool.flush();
        cutPower();
        assertEquals(2, block(0));
        pool.resync().join();
        assertSameAfterClosing();
    }

    /** Fault: likewise when the member dropped the block after it had been copied from there. */
    @Test
    void aCopyIsOfWhatTheMemberKeeps() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        pool.resync().join();
        for (VolatileDevice cache : caches) {
            cache.evict(new Random(1), 1);
        }
        flushTwice();
        assertSameAfterClosing();
    }

    /** Fault: closing took the marks away, and the next opening knew of nothing. */
    @Test
    void closingLeavesTheMarks() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        Members.drop(pool);
        pool.open();
        pool.resync().join();
        flushTwice();
        cutPower();
        assertSameAfterClosing();
    }

    /** Fault: the pool was lost before it had noted the failed flush; the next opening did not. */
    @Test
    void anotherOpeningWritesWhatIsMarked() throws Exception {
        pool.write(0, filled(2, 1));
        for (VolatileDevice cache : caches) {
            cache.failNextFlush();
            assertThrows(MediumException.class, cache::flush);
            cache.close();
        }
        pool = MirroredDevice.of(caches);
        pool.open();
        pool.copies().join();
        flushTwice();
        cutPower();
        assertEquals(2, block(0));
        assertSameAfterClosing();
    }

    /** Goal: a cache above drops what it read before the member had written it. */
    @Test
    void aCacheAboveShowsWhatTheMemberKeeps() throws Exception {
        CachedDevice cached = new CachedDevice(pool, 1 << 20);
        pool.close();
        cached.open();
        cached.write(0, filled(2, 1));
        caches.forEach(VolatileDevice::failNextFlush);
        assertThrows(DeviceException.class, cached::flush);
        assertEquals(2, Members.read(cached, 0, 1)[0]);
        for (VolatileDevice cache : caches) {
            cache.evict(new Random(1), 1);
        }
        cached.flush();
        assertEquals(1, Members.read(cached, 0, 1)[0]);
    }

    /** Goal: a block that cannot be read does not keep the others from being written. */
    @Test
    void aBadBlockIsPassedOver() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        members.forEach(member -> member.inject(Fault.fail().on(Operation.READ).at(DATA + 5, 1)));
        pool.flush();
        members.forEach(FaultyDevice::heal);
        cutPower();
        assertEquals(2, block(0));
    }

    /** Goal: each flush fails as long as the member cannot write, and the next one covers all. */
    @Test
    void aFlushFailsUntilItIsWritten() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        failFlush();
        members.forEach(member -> member.inject(Fault.fail().on(Operation.WRITE).times(1)));
        assertThrows(DeviceException.class, pool::flush);
        members.forEach(FaultyDevice::heal);
        pool.flush();
        cutPower();
        assertEquals(2, block(0));
    }

    /**
     * Fault: a member was copied to when the only current one lost a write in a region that had
     * been copied before; the copy ended, and the two differed.
     */
    @Test
    void aLossWhileAMemberIsCopiedToIsCopiedToo() throws Exception {
        members.get(1).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        pool.write(8, filled(4, 1));
        pool.write(LAST, filled(1, 1));
        flushTwice();
        members.get(0).inject(
                Fault.of(new Fault.Hang()).on(Operation.READ).at(DATA + LAST, 1).times(1));
        CompletableFuture<Void> copy = pool.resync();
        members.get(0).awaitHanging(1);
        pool.write(0, filled(2, 1));
        caches.get(0).cutPower();
        members.get(0).release();
        copy.join();
        assertThrows(DeviceException.class, pool::flush);
        flushTwice();
        assertEquals(1, block(0));
        assertSameAfterClosing();
    }

    /** Goal: a new mirror, all of which is marked, is not written anew by a copy or a flush. */
    @Test
    void aNewMirrorIsNotWrittenAnew() throws Exception {
        List<MemoryDevice> fresh = Members.memories(2);
        MirroredDevice.create(fresh);
        List<FaultyDevice> watched = Members.faulty(fresh, 1);
        watched.getFirst().inject(Fault.fail().on(Operation.WRITE).at(DATA, Members.BLOCKS));
        try (MirroredDevice made = MirroredDevice.of(watched)) {
            made.open();
            made.copies().join();
            made.flush();
            assertEquals(PoolStatus.Health.HEALTHY, made.status().health());
        }
    }

    /** Goal: a flush does not wait for what was marked at opening, only a copy does. */
    @Test
    void aFlushDoesNotWaitForWhatWasMarkedBefore() throws Exception {
        pool.write(0, filled(2, 1));
        List<FaultyDevice> cut = Members.faulty(Members.snapshots(disks).subList(0, 1), 1);
        try (MirroredDevice alone = MirroredDevice.ofThoseThere(cut)) {
            alone.open();
            cut.getFirst().inject(Fault.fail().on(Operation.READ).at(DATA, Members.BLOCKS));
            alone.flush();
            alone.flush();
            assertEquals(2, alone.status().dirtyRegions(), "its marks stay");
        }
    }
}

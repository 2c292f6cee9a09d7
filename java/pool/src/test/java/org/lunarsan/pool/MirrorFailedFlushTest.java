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
 * All members fail a flush and consider the unwritten blocks clean: reads return the blocks, no
 * later flush writes them, and a power cut undoes them silently. A mirror keeps one such member as
 * it is.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorFailedFlushTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** A block in the last region. */
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

    /** Fails a flush: block 0 holds 2 in the caches of all members, and 1 on their media. */
    private void failFlush() {
        caches.forEach(VolatileDevice::failNextFlush);
        assertThrows(DeviceException.class, pool::flush);
    }

    /** Flushes twice; the second flush removes the marks. */
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
     * Fault: the kept member never wrote the block, its mark was removed, and a power cut undid the
     * write: members differed for good, and reads returned varying versions.
     */
    @Test
    void theKeptMemberIsRewritten() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        assertEquals(2, block(0));
        pool.resync().join();
        flushTwice();
        cutPower();
        assertEquals(2, block(0));
        assertSameAfterClosing();
    }

    /** Fault: the same before another member was copied to, after a successful flush. */
    @Test
    void aSuccessfulFlushCoversWritesOfTheFailedOne() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        pool.flush();
        cutPower();
        assertEquals(2, block(0));
        pool.resync().join();
        assertSameAfterClosing();
    }

    /** Fault: the same if the member dropped the block after it had been copied from there. */
    @Test
    void aCopyReadsRewrittenBlocks() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        pool.resync().join();
        for (VolatileDevice cache : caches) {
            cache.evict(new Random(1), 1);
        }
        flushTwice();
        assertSameAfterClosing();
    }

    /** Fault: closing removed the marks, and the next opening had no record of the failed flush. */
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

    /**
     * Fault: the pool was lost before it had recorded the failed flush, and the next opening
     * ignored it.
     */
    @Test
    void theNextOpeningRewritesMarkedRegions() throws Exception {
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

    /** Goal: a cache above drops data read before the member was rewritten. */
    @Test
    void aCacheAboveShowsTheBlocksOfTheMember() throws Exception {
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

    /** Goal: an unreadable block does not prevent the others from being rewritten. */
    @Test
    void aBadBlockIsSkipped() throws Exception {
        pool.write(0, filled(2, 1));
        failFlush();
        members.forEach(member -> member.inject(Fault.fail().on(Operation.READ).at(DATA + 5, 1)));
        pool.flush();
        members.forEach(FaultyDevice::heal);
        cutPower();
        assertEquals(2, block(0));
    }

    /** Goal: each flush fails while the member cannot write, and the next one covers all writes. */
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
     * Fault: during a copy, the only current member lost a write in a region that had been copied
     * already; the copy ended, and the two members differed.
     */
    @Test
    void aLossDuringACopyIsCopiedToo() throws Exception {
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

    /** Goal: a copy or a flush does not rewrite a new mirror, all regions of which are marked. */
    @Test
    void aNewMirrorIsNotRewritten() throws Exception {
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

    /** Goal: only a copy waits for regions marked at opening, a flush does not. */
    @Test
    void aFlushDoesNotWaitForOlderMarks() throws Exception {
        pool.write(0, filled(2, 1));
        List<FaultyDevice> cut = Members.faulty(Members.snapshots(disks).subList(0, 1), 1);
        try (MirroredDevice alone = MirroredDevice.ofDegraded(cut)) {
            alone.open();
            cut.getFirst().inject(Fault.fail().on(Operation.READ).at(DATA, Members.BLOCKS));
            alone.flush();
            alone.flush();
            assertEquals(2, alone.status().dirtyRegions(), "its marks stay");
        }
    }
}

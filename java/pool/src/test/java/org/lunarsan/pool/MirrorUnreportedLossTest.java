package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;

/**
 * A loss that is reported, once, to a flush of the pool itself instead of a caller's. A flush of
 * the caller has to fail all the same.
 */
class MirrorUnreportedLossTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** A block in an unmarked region: a write there flushes the marks first. */
    private static final int UNMARKED = 600;

    private final List<MemoryDevice> disks = Members.memories(2);
    private final List<VolatileDevice> caches = disks.stream().map(VolatileDevice::new).toList();
    private final List<FaultyDevice> members = Members.faulty(caches, 1);
    private final MirroredDevice pool = MirroredDevice.of(members);
    private final CachedDevice cached = new CachedDevice(pool, 1 << 20);

    /** Sets block 0: 1 is flushed, 2 is not. */
    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        cached.open();
        cached.write(0, filled(1, 1));
        cached.flush();
        cached.write(0, filled(2, 1));
    }

    @AfterEach
    void close() {
        Members.drop(pool);
    }

    private void cutPower() throws DeviceException {
        for (VolatileDevice cache : caches) {
            cache.cutPower();
        }
    }

    private static int first(Device device) throws DeviceException {
        return Members.read(device, 0, 1)[0];
    }

    private void assertToldOnce() throws DeviceException {
        assertTrue(pool.losses() > 0, "the loss is counted");
        assertEquals(1, first(cached), "a cache on top shows what is there");
        assertThrows(PoisonedException.class, cached::flush);
        cached.write(0, filled(3, 1));
        cached.flush();
        assertEquals(3, first(cached));
    }

    /**
     * Fault: the flush of an intent page consumed the reports of a loss of both members; the flush
     * of the caller succeeded, no loss was counted, and a cache on top still returned the lost
     * write.
     */
    @Test
    void theMarkOfAWriteHidesNoLoss() throws Exception {
        cutPower();
        assertThrows(PoisonedException.class, () -> cached.write(UNMARKED, filled(4, 1)));
        assertToldOnce();
    }

    /**
     * Goal: a cache on top returns the actual content as soon as all members have counted their
     * loss.
     */
    @Test
    void aCacheAboveShowsTheBlocksOfTheMember() throws Exception {
        cutPower();
        assertEquals(1, first(cached));
        assertToldOnce();
    }

    /**
     * Fault: a second loss of all members, before the pool had noticed the first, was not counted:
     * a cache on top returned data written between them.
     */
    @Test
    void everyLossCounts() throws Exception {
        members.get(1).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        cached.write(8, filled(4, 1));
        cached.write(0, filled(1, 1));
        cached.flush();
        cached.write(0, filled(2, 1));
        caches.get(0).cutPower();
        long losses = pool.losses();
        cached.write(0, filled(3, 1));
        caches.get(0).cutPower();
        assertTrue(pool.losses() > losses, "the second loss is counted");
        assertToldOnce();
    }

    /** Fault: the same for the flush of a label that records the failure of another member. */
    @Test
    void theLabelOfAnotherMemberHidesNoLoss() throws Exception {
        caches.get(1).cutPower();
        members.get(0).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        cached.write(8, filled(4, 1));
        assertToldOnce();
        assertEquals(4, Members.read(cached, 8, 1)[0]);
    }

    /**
     * Fault: a copy from the only member, which had lost its last write, made another one current
     * that had counted no loss: the loss was never reported.
     */
    @Test
    void aCopyOfTheRemainingMemberHidesNoLoss() throws Exception {
        members.get(1).inject(Fault.fail().on(Operation.WRITE).at(DATA + 8, 1).times(1));
        cached.write(8, filled(4, 1));
        cached.write(0, filled(1, 1));
        cached.flush();
        cached.write(0, filled(2, 1));
        caches.get(0).cutPower();
        pool.resync().join();
        assertToldOnce();
    }

    /** Counts a loss of the first block before the second read after another member failed. */
    private static final class LosesAtRepair extends ForwardingDevice {
        private final FaultyDevice other;
        private long losses;
        private int reads;

        LosesAtRepair(Device inner, FaultyDevice other) {
            super(inner);
            this.other = other;
        }

        @Override
        public synchronized void read(long address, ByteBuffer buffer) throws DeviceException {
            // The first read serves the caller, the second one the repair.
            if (address == DATA && other.fired() > 0 && ++reads == 2) {
                super.write(DATA, ByteBuffer.wrap(filled(1, 1)));
                losses++;
            }
            super.read(address, buffer);
        }

        @Override
        public synchronized long losses() {
            return losses;
        }
    }

    /** Fault: a block was repaired from a member that had lost it, and considered good. */
    @Test
    void aRepairHidesNoLoss() throws Exception {
        Members.drop(pool);
        List<MemoryDevice> fresh = Members.memories(2);
        Members.mirror(fresh);
        FaultyDevice bad = new FaultyDevice(fresh.get(1), 1);
        MirroredDevice repaired =
                MirroredDevice.of(List.of(new LosesAtRepair(fresh.get(0), bad), bad));
        repaired.open();
        repaired.write(0, filled(5, 1));
        bad.inject(Fault.fail().on(Operation.READ).at(DATA, 1).times(1));
        while (bad.fired() == 0) {
            assertEquals(5, first(repaired));
        }
        assertEquals(5, first(repaired));
        assertEquals(0, repaired.losses());
        Members.drop(repaired);
    }

    private void flushElsewhere(int member) {
        assertThrows(PoisonedException.class, caches.get(member)::flush);
    }

    /**
     * Fault: if flushes of other users had received the reports of a loss of all members, a flush
     * of the pool succeeded.
     */
    @Test
    void aLossReportedToOtherCallersFailsAFlush() throws Exception {
        cutPower();
        flushElsewhere(0);
        flushElsewhere(1);
        assertThrows(PoisonedException.class, pool::flush);
        pool.flush();
    }

    /** Fault: likewise, closing left such a member current, for the next opening to copy from. */
    @Test
    void closingLeavesOutAMemberWhoseLossOthersSaw() throws Exception {
        caches.get(0).cutPower();
        flushElsewhere(0);
        DeviceException thrown = assertThrows(DeviceException.class, pool::close);
        assertTrue(thrown.getMessage().contains("member is left out"), thrown::getMessage);
    }

    /** Goal: of two flushes that began before a loss each fails, and no later one. */
    @Test
    void everyEarlierFlushReportsTheLoss() throws Exception {
        cutPower();
        assertThrows(PoisonedException.class, () -> pool.write(UNMARKED, filled(4, 1)));
        assertThrows(PoisonedException.class, pool::flush);
        pool.flush();
        pool.flush();
    }

    /** Goal: closing reports a loss that no flush has reported. */
    @Test
    void closingReportsTheLoss() throws Exception {
        cutPower();
        assertThrows(PoisonedException.class, () -> pool.write(UNMARKED, filled(4, 1)));
        DeviceException thrown = assertThrows(DeviceException.class, pool::close);
        assertTrue(thrown.getMessage().contains("no flush has reported"), thrown::getMessage);
    }

    /** Goal: a striped pool of mirrors passes the loss of a mirror on, once. */
    @Test
    void stripesOfMirrorsForwardTheLoss() throws Exception {
        List<VolatileDevice> all = new ArrayList<>();
        List<MirroredDevice> mirrors = new ArrayList<>();
        for (int index = 0; index < 4; index += 2) {
            List<VolatileDevice> pair = new ArrayList<>();
            for (int half = 0; half < 2; half++) {
                String name = "disk" + (index + half);
                pair.add(new VolatileDevice(Members.memory(name, Members.BLOCK, 4096)));
            }
            Members.mirror(pair);
            all.addAll(pair);
            mirrors.add(MirroredDevice.of(pair));
        }
        StripedDevice.create(mirrors, 8);
        try (CachedDevice stripes = new CachedDevice(StripedDevice.of(mirrors), 1 << 20)) {
            stripes.open();
            stripes.write(0, filled(1, 16));
            stripes.flush();
            stripes.write(0, filled(2, 16));
            all.get(0).cutPower();
            all.get(1).cutPower();
            int unmarked = 2 * UNMARKED;
            assertThrows(PoisonedException.class, () -> stripes.write(unmarked, filled(4, 1)));
            assertEquals(1, first(stripes));
            assertEquals(2, Members.read(stripes, 8, 1)[0], "of the other mirror");
            assertThrows(PoisonedException.class, stripes::flush);
            stripes.flush();
        }
    }
}

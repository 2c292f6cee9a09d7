package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.BitSet;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** The order of intent pages in their slots, and the removal of marks. */
class IntentLogTest {
    private static final UUID POOL = new UUID(1, 2);
    private static final int REGIONS = 8;

    /** Goal: a page never overwrites the newest one, also after a failed copy of pages. */
    @Test
    void keepsTheNewestPageWhenACopyFails() throws Exception {
        for (int passes = 0; passes < 2; passes++) {
            try (MemoryDevice disk = Members.memory("disk", Members.BLOCK, Members.BLOCKS);
                    FaultyDevice bad = new FaultyDevice(
                            Members.memory("bad", Members.BLOCK, Members.BLOCKS), 0)) {
                disk.open();
                bad.open();
                MirrorMember member = new MirrorMember(0, disk, MemberState.CURRENT);
                IntentLog log = new IntentLog(
                        POOL, REGIONS, 128, new BitSet(), 1, Parallel.WITHOUT_END);
                log.begin(0, 1, List.of(member));
                assertEquals(List.of(0L, 2L), List.of(sequence(disk, 1), sequence(disk, 0)));
                bad.inject(Fault.fail().on(Operation.WRITE).after(passes));
                MirrorMember target = new MirrorMember(1, bad, MemberState.SYNCING);
                assertThrows(DeviceException.class,
                        () -> log.copyTo(target, Parallel.WITHOUT_END));
                log.begin(128, 1, List.of(member));
                assertEquals(2, sequence(disk, 0), "the newest before is still there");
            }
        }
    }

    /** Returns the sequence number of the page in a slot; 0: none. */
    private static long sequence(Device disk, int slot) throws DeviceException {
        byte[] page = new byte[IntentPage.BYTES];
        disk.read(PoolLayout.of(disk).intentPage(slot), page);
        return IntentPage.decode(page, POOL, REGIONS).map(IntentPage::sequence).orElse(0L);
    }

    /** Goal: the mark of a region that was just copied survives a flush that began before. */
    @Test
    void keepsMarksUntilACopyIsFlushed() {
        BitSet marked = new BitSet();
        marked.set(0);
        IntentLog log = new IntentLog(POOL, REGIONS, 128, marked, 1, Parallel.WITHOUT_END);
        int flushed = log.beginFlush();
        log.copied(0);
        log.flushed(flushed, region -> true, List.of());
        assertEquals(1, log.dirtyCount());
        log.flushed(log.beginFlush(), region -> true, List.of());
        log.flushed(log.beginFlush(), region -> true, List.of());
        assertEquals(0, log.dirtyCount());
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MemoryDevice;

/**
 * Members that lose acknowledged writes and stay open. Once, a mirror returned their old blocks
 * beside the new ones, was closed with them as current members, and copied the old ones over the
 * new.
 */
class MirrorLossTest {
    private static final int READS = 50;

    private final List<MemoryDevice> disks = Members.memories(2);
    private List<VolatileDevice> members;
    private MirroredDevice pool;

    @BeforeEach
    void create() throws Exception {
        Members.mirror(disks);
        members = disks.stream().map(VolatileDevice::new).toList();
        pool = MirroredDevice.of(members);
        pool.open();
        pool.write(0, filled(1, 1));
        pool.flush();
        pool.write(0, filled(2, 1));
    }

    private static int first(MirroredDevice pool) throws DeviceException {
        byte[] found = new byte[Members.BLOCK];
        pool.read(0, found);
        return found[0];
    }

    /** Goal: after one member lost power, every read returns the acknowledged data. */
    @Test
    void readsReturnAcknowledgedWrites() throws Exception {
        for (int lost = 0; lost < 2; lost++) {
            pool.write(0, filled(2, 1));
            members.get(lost).cutPower();
            for (int read = 0; read < READS; read++) {
                assertEquals(2, first(pool), "member " + lost);
            }
            pool.flush();
            assertEquals(0, pool.losses());
            pool.resync().join();
            assertEquals(2, first(pool));
        }
        pool.close();
        Members.assertSame(disks);
    }

    /**
     * Goal: if the pool is closed before the loss is seen, the next opening copies from the other
     * member.
     */
    @Test
    void closingLeavesOutMembersWithLosses() throws Exception {
        for (int lost = 0; lost < 2; lost++) {
            pool.write(0, filled(3 + lost, 1));
            members.get(lost).cutPower();
            DeviceException failure = assertThrows(DeviceException.class, pool::close);
            assertTrue(failure.getMessage().contains("member is left out"), failure::getMessage);
            pool.open();
            pool.resync().join();
            assertEquals(3 + lost, first(pool), "member " + lost);
        }
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: if all members lost a write, reads agree with each other, and the loss is reported. */
    @Test
    void aLossOfAllMembersIsReported() throws Exception {
        for (VolatileDevice member : members) {
            member.cutPower();
        }
        for (int read = 0; read < READS; read++) {
            assertEquals(1, first(pool));
        }
        assertEquals(1, pool.losses());
        assertThrows(DeviceException.class, pool::flush);
        assertEquals(1, first(pool));
        pool.write(0, filled(5, 1));
        pool.flush();
        Members.drop(pool);
        pool.open();
        pool.resync().join();
        assertEquals(5, first(pool));
        pool.close();
        Members.assertSame(disks);
    }
}

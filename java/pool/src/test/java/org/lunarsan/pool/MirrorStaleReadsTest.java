package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.lunarsan.pool.Members.filled;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/**
 * Reads that a member answered after it had lost a write, before the loss was reported: a cache
 * above must not keep them once the member is left out. The members count no losses.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorStaleReadsTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** Number of blocks that fit into the cache. */
    private static final int ROOM = 16;

    private final List<VolatileDevice> caches = new ArrayList<>();
    private final List<FaultyDevice> members = new ArrayList<>();
    private CachedDevice cached;
    private Device top;

    @BeforeEach
    void makeMembers() throws Exception {
        List<MemoryDevice> disks = new ArrayList<>();
        for (int index = 0; index < 4; index++) {
            disks.add(Members.memory("disk" + index, Members.BLOCK, 4096));
        }
        Members.mirror(disks.subList(0, 2));
        Members.mirror(disks.subList(2, 4));
        disks.forEach(disk -> caches.add(VolatileDevice.withoutCount(disk)));
        members.addAll(Members.faulty(caches, 1));
    }

    @AfterEach
    void close() {
        try {
            top.close();
        } catch (DeviceException thrown) {
            // A member was left out.
        }
    }

    private MirroredDevice mirror(int first) {
        return MirroredDevice.of(members.subList(first, first + 2));
    }

    /** Opens a cache over a pool; block 0 holds 2, which is not flushed, and the cache is cold. */
    private void open(Device pool) throws DeviceException {
        cached = new CachedDevice(pool, ROOM * Members.BLOCK);
        top = cached;
        cached.open();
        cached.write(0, filled(1, 1));
        cached.flush();
        cached.write(0, filled(2, 1));
    }

    private int first() throws DeviceException {
        return Members.read(cached, 0, 1)[0];
    }

    /** Has the cache read block 0 from the first member, which lost it. */
    private void readWhatIsLost() throws DeviceException {
        caches.getFirst().cutPower();
        long before;
        do {
            for (int block = 1; block < 20 * ROOM; block++) {
                Members.read(cached, block, 1);
            }
            before = members.getFirst().seen(Operation.READ);
            first();
        } while (members.getFirst().seen(Operation.READ) == before);
        assertEquals(1, first(), "the loss is not reported yet");
    }

    /** Fault: a cache still returned the old block after the flush that reported the loss. */
    @Test
    void aFlushThatLeavesAMemberOutDropsThem() throws Exception {
        open(mirror(0));
        readWhatIsLost();
        cached.flush();
        assertEquals(2, first());
    }

    /**
     * Fault: the same if the member is left out for another failure, before any flush reports the
     * loss.
     */
    @Test
    void anyOtherFailureThatLeavesAMemberOutDropsThem() throws Exception {
        open(mirror(0));
        readWhatIsLost();
        members.getFirst().inject(Fault.of(new Fault.Fail(DisconnectedException::new))
                .on(Operation.WRITE).at(DATA + 8, 1).times(1));
        cached.write(8, filled(3, 1));
        assertEquals(2, first());
    }

    /** Goal: a striped pool, and a mirror as a member, pass the number of stale reads on. */
    @Test
    void poolsOfMirrorsForwardIt() throws Exception {
        List<MirroredDevice> mirrors = List.of(mirror(0), mirror(2));
        StripedDevice.create(mirrors, 8);
        StripedDevice stripes = StripedDevice.of(mirrors);
        top = stripes;
        stripes.open();
        long before = stripes.staleReads();
        stripes.write(0, filled(2, 1));
        caches.getFirst().cutPower();
        stripes.flush();
        assertNotEquals(before, stripes.staleReads());
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** A mirror of disks that differ everywhere, as after a power cut during writes to all blocks. */
class NewMirrorTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    private static final int REGION = (64 << 10) / Members.BLOCK;
    private static final int REGIONS = Members.BLOCKS / REGION;

    private final List<MemoryDevice> disks = Members.memories(3);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    private final MirroredDevice pool = MirroredDevice.of(members);

    @BeforeEach
    void create() throws Exception {
        for (int index = 0; index < disks.size(); index++) {
            try (MemoryDevice disk = disks.get(index)) {
                disk.open();
                disk.write(DATA, Members.filled(index + 1, Members.BLOCKS));
            }
        }
        MirroredDevice.create(disks);
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
    }

    /** Goal: a new mirror copies its first member to the others, whatever their content. */
    @Test
    void copiesTheFirstToTheOthers() throws Exception {
        pool.open();
        assertEquals(1, Members.read(pool, Members.BLOCKS - 1, 1)[0]);
        pool.copies().join();
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        assertEquals(1, Members.read(pool, 7, 1)[0]);
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: erased members are equal from the start, so nothing is copied; others are refused. */
    @Test
    void copiesNothingWhenErased() throws Exception {
        for (MemoryDevice disk : disks) {
            PoolLabels.clear(disk);
        }
        List<Device> coarse = new ArrayList<>(disks);
        coarse.set(2, new ForwardingDevice(disks.get(2)) {
            @Override
            public boolean unmapReadsZeroes() {
                return false;
            }
        });
        assertThrows(DeviceOpenException.class, () -> MirroredDevice.createErased(coarse));
        MirroredDevice.createErased(disks);
        pool.open();
        assertEquals(0, pool.status().dirtyRegions());
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        assertEquals(0, Members.read(pool, Members.BLOCKS - 1, 1)[0]);
        for (FaultyDevice member : members) {
            assertEquals(0, member.seen(Operation.WRITE));
        }
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: copied regions stay marked until a flush that began after the copy. */
    @Test
    void keepsMarksUntilTheCopyIsDurable() throws Exception {
        pool.open();
        pool.copies().join();
        pool.flush();
        assertEquals(pool.status().regions(), pool.status().dirtyRegions());
        pool.flush();
        assertEquals(0, pool.status().dirtyRegions());
    }

    /** Goal: members that lose the source of their copies end equal, and stay. */
    @Test
    void agreesWhenTheSourceIsLost() throws Exception {
        // The most advanced member must not be complete: the other would be copied from there.
        members.get(2).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE)
                .at(DATA + (REGIONS - 1) * REGION, 1).times(1));
        members.get(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE)
                .at(DATA + 2 * REGION, 1).times(1));
        pool.open();
        members.get(1).awaitHanging(1);
        members.get(0).inject(Fault.fail().on(Operation.READ));
        members.get(0).inject(Fault.fail().on(Operation.WRITE));
        members.get(2).heal();
        members.get(2).release();
        members.get(1).release();
        pool.copies().join();
        assertOthersAreTheSame();
    }

    /** Goal: data copied from the lost member counts more than data that was never copied. */
    @Test
    void keepsRegionsCopiedByAnyMember() throws Exception {
        Assembly found = Assembly.open("pool", PoolKind.MIRRORED, List.copyOf(disks));
        try {
            List<MirrorMember> all = new ArrayList<>();
            for (int slot = 0; slot < disks.size(); slot++) {
                all.add(new MirrorMember(slot, disks.get(slot), MemberState.CURRENT));
            }
            IntentLog log = new IntentLog(found.label().pool(), REGIONS, REGION, regions(0), 1,
                    Parallel.WITHOUT_END);
            Mirror mirror = new Mirror("pool", found.label(), all, log, Parallel.WITHOUT_END);
            all.get(1).miss(regions(2));
            all.get(2).miss(regions(4));
            mirror.membership().leaveOut(List.of(all.getFirst()));
            BitSet left = regions(2);
            left.andNot(regions(4));
            assertEquals(left, all.get(1).missing(), "the other one has these");
            assertEquals(regions(4), all.get(2).missing(), "no member has it: the first decides");
        } finally {
            found.closeAll();
        }
    }

    private static BitSet regions(int first) {
        BitSet regions = new BitSet();
        regions.set(first, REGIONS);
        return regions;
    }

    private void assertOthersAreTheSame() throws Exception {
        assertEquals(MemberState.STALE, pool.status().members().get(0).state());
        assertEquals(MemberState.CURRENT, pool.status().members().get(1).state());
        assertEquals(MemberState.CURRENT, pool.status().members().get(2).state());
        assertEquals(1, Members.read(pool, REGION, 1)[0], "copied from the first");
        pool.close();
        List<MemoryDevice> left = new ArrayList<>(disks);
        left.removeFirst();
        Members.assertSame(left);
    }
}

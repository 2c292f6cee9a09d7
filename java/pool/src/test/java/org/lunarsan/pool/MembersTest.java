package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.assertRefused;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.ReadOnlyDeviceException;

/** Sets of devices that form a pool, and sets that do not. */
class MembersTest {
    private final List<MemoryDevice> disks = Members.memories(3);

    private static void assertClosed(Device disk) {
        assertThrows(DeviceClosedException.class, () -> disk.read(0, new byte[0]));
    }

    /** Goal: members are found in any order. */
    @Test
    void takesMembersInAnyOrder() throws Exception {
        StripedDevice.create(disks, 4);
        try (StripedDevice pool = StripedDevice.of(disks)) {
            pool.open();
            pool.write(3, Members.filled(1, 20));
        }
        try (StripedDevice pool = StripedDevice.of(disks.reversed())) {
            pool.open();
            assertEquals(3 * 1024, pool.blockCount());
            assertEquals(1, Members.read(pool, 22, 1)[0]);
            assertEquals("disk0", pool.status().members().get(0).name());
        }
        disks.forEach(MembersTest::assertClosed);
    }

    /**
     * Goal: unlabelled, foreign, duplicate and missing members and other kinds are refused, with a
     * message.
     */
    @Test
    void refusesMembersThatDoNotFit() throws Exception {
        Members.mirror(disks);
        List<MemoryDevice> others = Members.memories(3);
        Device blank = others.get(0);
        assertRefused(MirroredDevice.of(List.of(disks.get(0), disks.get(1), blank)), "no label");
        Members.mirror(others);
        assertRefused(MirroredDevice.of(List.of(disks.get(0), disks.get(1), others.get(2))),
                "do not belong together");
        assertRefused(MirroredDevice.of(List.of(disks.get(0), disks.get(1), disks.get(0))),
                "disk0 was named twice");
        assertRefused(MirroredDevice.of(
                List.of(disks.get(0), disks.get(1), disks.get(1).snapshot())), "both are member 1");
        assertRefused(MirroredDevice.of(disks.subList(0, 2)), "member 2 of 3 is missing");
        assertRefused(StripedDevice.of(disks), "is MIRRORED, not STRIPED");
        assertRefused(MirroredDevice.of(List.of()), "none of its members");
        List<MemoryDevice> stripes = Members.memories(2);
        StripedDevice.create(stripes, 8);
        assertRefused(StripedDevice.of(stripes.subList(0, 1)), "member 1 of 2 is missing");
        disks.forEach(MembersTest::assertClosed);
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        }
    }

    /** Goal: a member that an interrupt kept closed does not count as missing. */
    @Test
    void anInterruptLeavesNoMemberOut() throws Exception {
        Members.mirror(disks);
        Device interrupted = new ForwardingDevice(disks.get(1)) {
            @Override
            public void open() throws DeviceException {
                if (Thread.currentThread().isInterrupted()) {
                    throw new DeviceOpenException(name(), Operation.OPEN, "interrupted", null);
                }
                super.open();
            }
        };
        List<Device> members = List.of(disks.get(0), interrupted, disks.get(2));
        try (MirroredDevice pool = MirroredDevice.ofDegraded(members)) {
            Thread.currentThread().interrupt();
            assertRefused(pool, "interrupted while it opened disk1");
            assertTrue(Thread.interrupted(), "the interrupt status is kept");
            disks.forEach(MembersTest::assertClosed);
            pool.open();
            assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        }
    }

    /** Goal: impossible pools are refused, and members of another pool are not overwritten. */
    @Test
    void refusesToMakeImpossiblePools() throws Exception {
        Class<DeviceOpenException> refused = DeviceOpenException.class;
        assertThrows(refused, () -> MirroredDevice.create(disks.subList(0, 1)));
        assertThrows(refused, () -> StripedDevice.create(disks, 0));
        assertThrows(refused, () -> StripedDevice.create(disks, 2000));
        assertThrows(refused, () -> MirroredDevice.create(
                List.of(disks.get(0), Members.memory("4096", 4096, 100))));
        assertThrows(refused, () -> MirroredDevice.create(
                List.of(disks.get(0), new MemoryDevice(512, 2056))));
        Members.mirror(disks.subList(0, 2));
        DeviceOpenException refusal = assertThrows(refused, () -> MirroredDevice.create(disks));
        assertTrue(refusal.getMessage().contains("already"), refusal::getMessage);
        PoolLabels.clear(disks.get(0));
        PoolLabels.clear(disks.get(1));
        Members.mirror(disks);
    }

    /** Goal: either label suffices, and a damaged label does not count as a missing one. */
    @Test
    void oneLabelIsEnough() throws Exception {
        Members.mirror(disks);
        PoolLayout layout = new PoolLayout(512, disks.get(0).blockCount());
        for (int copy = 0; copy < 2; copy++) {
            List<MemoryDevice> damaged = Members.snapshots(disks);
            try (MemoryDevice disk = damaged.get(1)) {
                disk.open();
                byte[] block = Members.read(disk, layout.label(copy), 1);
                block[200] ^= 1;
                disk.write(layout.label(copy), block);
            }
            try (MirroredDevice pool = MirroredDevice.of(damaged)) {
                pool.open();
                assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
            }
            try (MemoryDevice disk = damaged.get(1)) {
                disk.open();
                disk.write(layout.label(1 - copy), Members.filled(0, 8));
            }
            assertRefused(MirroredDevice.of(damaged), "its checksum is wrong");
        }
    }

    /** Goal: a member that cannot be opened is missing, and the reason is reported. */
    @Test
    void reportsWhyAMemberIsMissing() throws Exception {
        Members.mirror(disks);
        FaultyDevice bad = new FaultyDevice(disks.get(2), 0);
        bad.inject(Fault.fail().on(Operation.OPEN));
        List<Device> members = List.of(disks.get(0), disks.get(1), bad);
        DeviceOpenException refusal = assertThrows(
                DeviceOpenException.class, () -> MirroredDevice.of(members).open());
        assertTrue(refusal.getSuppressed()[0].getMessage().contains("injected"));
        try (MirroredDevice pool = MirroredDevice.ofDegraded(members)) {
            pool.open();
            assertEquals(PoolStatus.Health.DEGRADED, pool.status().health());
            assertEquals(MemberState.MISSING, pool.status().members().get(2).state());
        }
        // From then on the pool was written without the third member, which is stale.
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            assertEquals(MemberState.STALE, pool.status().members().get(2).state());
        }
    }

    /** Goal: a write to a pool with read-only members is refused, and leaves no member out. */
    @Test
    void refusesWritesWhenMembersAreReadOnly() throws Exception {
        List<MemoryDevice> stripes = Members.memories(2);
        StripedDevice.create(stripes, 8);
        Members.mirror(disks);
        for (Device pool : List.of(StripedDevice.of(readOnly(stripes)),
                MirroredDevice.of(readOnly(disks)))) {
            pool.open();
            assertThrows(ReadOnlyDeviceException.class, () -> pool.write(0, new byte[512]));
            assertThrows(ReadOnlyDeviceException.class, () -> pool.unmap(0, 1));
            pool.read(0, new byte[512]);
            if (pool instanceof MirroredDevice mirror) {
                assertEquals(PoolStatus.Health.HEALTHY, mirror.status().health());
            }
            pool.close();
        }
    }

    private static List<Device> readOnly(List<MemoryDevice> disks) {
        List<Device> made = new ArrayList<>();
        for (MemoryDevice disk : disks) {
            made.add(new ForwardingDevice(disk) {
                @Override
                public boolean isReadOnly() {
                    return true;
                }

                @Override
                public void write(long address, ByteBuffer buffer) throws DeviceException {
                    throw new ReadOnlyDeviceException(
                            name(), Operation.WRITE, address, 0, "it is read-only", null);
                }
            });
        }
        return made;
    }

    /** Goal: two parts that were each opened without the other are never joined again. */
    @Test
    void refusesBothHalvesOfASplit() throws Exception {
        List<MemoryDevice> two = disks.subList(0, 2);
        Members.mirror(two);
        for (MemoryDevice half : two) {
            try (MirroredDevice pool = MirroredDevice.ofDegraded(List.of(half))) {
                pool.open();
            }
        }
        assertRefused(MirroredDevice.of(two), "was written without the others");
        // Also if one of them was used for longer.
        MemoryDevice third = disks.get(2);
        try (MirroredDevice pool = MirroredDevice.ofDegraded(List.of(two.get(0)))) {
            pool.open();
            pool.replace(1, third);
            pool.resync().join();
        }
        assertRefused(MirroredDevice.of(two), "was written without the others");
        PoolLabels.clear(two.get(0));
        assertRefused(MirroredDevice.of(two), "no label");
    }
}

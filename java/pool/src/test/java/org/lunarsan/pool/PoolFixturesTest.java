package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.lunarsan.pool.Members.filled;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/**
 * Members of pools that Java and Rust have written, which both open: docs/formats/pool.md. The
 * files of Java are written by {@link #main}, those of Rust by its tests.
 */
class PoolFixturesTest {
    private static final int STRIPE = 8;

    private static int first(Device pool, long address) throws DeviceException {
        return Members.read(pool, address, 1)[0];
    }

    /** Goal: closed mirrors have all data, and nothing is copied. */
    @Test
    void mirrors() throws Exception {
        for (String name : List.of("java-mirror", "rust-mirror")) {
            MirroredDevice pool = MirroredDevice.of(PoolFixtures.members(name).reversed());
            pool.open();
            assertEquals(0, pool.status().members().get(1).regionsToCopy());
            for (int block = 0; block < 4; block++) {
                assertEquals(block + 1, first(pool, block), name);
            }
            assertEquals(9, first(pool, 700), name);
            pool.close();
        }
    }

    /** Goal: the slot of a member that Rust has removed is that of a missing member. */
    @Test
    void removedMembers() throws Exception {
        List<MemoryDevice> disks = PoolFixtures.members("rust-vacant");
        MirroredDevice pool = MirroredDevice.of(List.of(disks.get(2), disks.get(0)));
        pool.open();
        assertEquals(4, first(pool, 0));
        assertEquals(MemberState.MISSING, pool.status().members().get(1).state());
        assertEquals(0, pool.status().members().get(2).regionsToCopy());
        pool.close();
    }

    /** Goal: in a marked region the first member counts. */
    @Test
    void markedMirrors() throws Exception {
        for (String name : List.of("java-marked", "rust-marked")) {
            List<MemoryDevice> disks = PoolFixtures.members(name);
            MirroredDevice pool = MirroredDevice.of(disks);
            pool.open();
            assertEquals(1, first(pool, 0));
            assertEquals(5, first(pool, 300), name);
            pool.copies().join();
            pool.close();
            Members.assertSame(disks);
        }
    }

    /** Goal: a member that was left out is stale. */
    @Test
    void staleMembers() throws Exception {
        for (String name : List.of("java-stale", "rust-stale")) {
            List<MemoryDevice> disks = PoolFixtures.members(name);
            MirroredDevice pool = MirroredDevice.of(disks);
            pool.open();
            assertEquals(MemberState.STALE, pool.status().members().get(1).state());
            assertEquals(7, first(pool, 0), name);
            pool.resync().join();
            pool.close();
            Members.assertSame(disks);
        }
    }

    /** Goal: a mirror of which both sides were written apart is refused. */
    @Test
    void splitMirrors() throws Exception {
        for (String name : List.of("java-split", "rust-split")) {
            MirroredDevice pool = MirroredDevice.of(PoolFixtures.members(name));
            Members.assertRefused(pool, "written without the others");
        }
    }

    /** Goal: a stripe has its blocks where the other language has put them. */
    @Test
    void stripes() throws Exception {
        for (String name : List.of("java-stripe", "rust-stripe")) {
            StripedDevice pool = StripedDevice.of(PoolFixtures.members(name).reversed());
            pool.open();
            for (int unit = 0; unit < 7; unit++) {
                assertArrayEquals(filled(unit + 1, STRIPE),
                        Members.read(pool, unit * STRIPE, STRIPE), name);
            }
            pool.close();
        }
    }

    /** Goal: a concatenation is refused by its name. */
    @Test
    void concatenations() throws Exception {
        Members.assertRefused(StripedDevice.of(PoolFixtures.members("rust-concat")),
                "belongs to a concatenation");
    }

    /** Writes the files of Java into a folder. */
    public static void main(String[] arguments) throws DeviceException, IOException {
        Path folder = Path.of(arguments[0]);
        write(folder, "java-mirror", mirror());
        write(folder, "java-marked", marked());
        write(folder, "java-stale", stale());
        write(folder, "java-split", split());
        List<MemoryDevice> striped = Members.memories(3);
        StripedDevice.create(striped, STRIPE);
        try (StripedDevice pool = StripedDevice.of(striped)) {
            pool.open();
            for (int unit = 0; unit < 7; unit++) {
                pool.write(unit * STRIPE, filled(unit + 1, STRIPE));
            }
        }
        write(folder, "java-stripe", striped);
    }

    private static void write(Path folder, String name, List<MemoryDevice> disks)
            throws DeviceException, IOException {
        List<String> lines = new ArrayList<>(PoolFixtures.lines(disks));
        lines.addFirst("# Written by PoolFixturesTest of java/pool.");
        Files.write(folder.resolve(name + ".txt"), lines);
    }

    private static List<MemoryDevice> mirror() throws DeviceException {
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            for (int block = 0; block < 4; block++) {
                pool.write(block, filled(block + 1, 1));
            }
            pool.write(700, filled(9, 1));
        }
        return disks;
    }

    private static List<MemoryDevice> marked() throws DeviceException {
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        MirroredDevice pool = MirroredDevice.of(disks);
        pool.open();
        pool.write(0, filled(1, 1));
        pool.flush();
        pool.write(300, filled(5, 1));
        List<MemoryDevice> crashed = Members.snapshots(disks);
        pool.close();
        // The power was cut before the second member had written the block.
        MemoryDevice second = crashed.get(1);
        second.open();
        second.write(PoolLayout.of(second).dataStart() + 300, filled(0, 1));
        second.close();
        return crashed;
    }

    private static List<MemoryDevice> stale() throws DeviceException {
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        FaultyDevice second = new FaultyDevice(disks.get(1), 1);
        try (MirroredDevice pool = MirroredDevice.of(List.of(disks.get(0), second))) {
            pool.open();
            pool.write(0, filled(6, 1));
            second.inject(Fault.fail().on(Operation.WRITE));
            pool.write(0, filled(7, 1));
        }
        return disks;
    }

    private static List<MemoryDevice> split() throws DeviceException {
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        for (MemoryDevice disk : disks) {
            try (MirroredDevice pool = MirroredDevice.ofDegraded(List.of(disk))) {
                pool.open();
                pool.write(0, filled(8, 1));
            }
        }
        return disks;
    }
}

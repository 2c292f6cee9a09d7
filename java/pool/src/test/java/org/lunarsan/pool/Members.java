package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.MemoryDevice;

/** Disks for pools, and helpers shared by the tests of pools. */
final class Members {
    static final int BLOCK = 512;
    /** Data blocks of each member. */
    static final int BLOCKS = 1024;

    private Members() {}

    static MemoryDevice memory(String name, int blockSize, long dataBlocks) {
        long extra = (PoolLayout.FRONT_BYTES + PoolLabel.BYTES) / blockSize;
        return new MemoryDevice(name, new Geometry(blockSize, dataBlocks + extra));
    }

    static List<MemoryDevice> memories(int count) {
        List<MemoryDevice> made = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            made.add(memory("disk" + index, BLOCK, BLOCKS));
        }
        return made;
    }

    static List<FaultyDevice> faulty(List<? extends Device> disks, long seed) {
        List<FaultyDevice> made = new ArrayList<>();
        disks.forEach(disk -> made.add(new FaultyDevice(disk, seed + made.size())));
        return made;
    }

    /** Creates a mirror of closed disks and completes its first copy. */
    static void mirror(List<? extends Device> disks) throws DeviceException {
        MirroredDevice.create(disks);
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            pool.copies().join();
        }
    }

    /** Closes a pool whose members may have lost power or rejected a label. */
    static void drop(MirroredDevice pool) {
        try {
            pool.close();
        } catch (DeviceException failure) {
            // The exception lists the regions marked for the next opening, which the test checks.
        }
    }

    static List<MemoryDevice> snapshots(List<MemoryDevice> disks) {
        return disks.stream().map(MemoryDevice::snapshot).toList();
    }

    static byte[] filled(int value, int blocks) {
        byte[] bytes = new byte[blocks * BLOCK];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    static byte[] read(Device device, long address, int blocks) throws DeviceException {
        byte[] bytes = filled(0x5A, blocks);
        device.read(address, bytes);
        return bytes;
    }

    static void assertRefused(Device pool, String words) throws DeviceException {
        DeviceOpenException refusal = assertThrows(DeviceOpenException.class, pool::open);
        assertTrue(refusal.getMessage().contains(words), refusal::getMessage);
    }

    /** Checks that the data of closed members is equal, byte by byte. */
    static void assertSame(List<MemoryDevice> disks) throws DeviceException {
        byte[] first = data(disks.getFirst());
        for (MemoryDevice disk : disks) {
            assertArrayEquals(first, data(disk), () -> disk.name() + " differs");
        }
    }

    private static byte[] data(MemoryDevice disk) throws DeviceException {
        try (MemoryDevice copy = disk.snapshot()) {
            copy.open();
            byte[] bytes = new byte[BLOCKS * BLOCK];
            copy.read(PoolLayout.of(copy).dataStart(), ByteBuffer.wrap(bytes));
            return bytes;
        }
    }
}

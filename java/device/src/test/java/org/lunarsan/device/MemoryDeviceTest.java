package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Arrays;
import org.junit.jupiter.api.Test;

class MemoryDeviceTest {
    /** Goal: a device of 2^62 bytes takes memory only for written blocks, and frees it. */
    @Test
    void isSparse() throws Exception {
        long blocks = 1L << 53;
        try (MemoryDevice device = new MemoryDevice(512, blocks)) {
            device.open();
            assertEquals(0, device.allocatedBytes());
            byte[] block = new byte[512];
            block[0] = 1;
            for (long address : new long[] {0, (1L << 31) / 512, (1L << 40) + 1, blocks - 1}) {
                device.write(address, block);
                byte[] found = new byte[512];
                device.read(address, found);
                assertEquals(1, found[0]);
            }
            assertEquals(4 * 65536, device.allocatedBytes());
            device.unmap(1, blocks - 2);
            byte[] found = new byte[1024];
            device.read(blocks - 2, found);
            assertEquals(0, found[0]);
            assertEquals(1, found[512]);
            device.unmap(0, blocks);
            assertEquals(0, device.allocatedBytes());
        }
    }

    /** Goal: a snapshot does not change with its device. */
    @Test
    void snapshotsStay() throws Exception {
        try (MemoryDevice device = new MemoryDevice(512, 8)) {
            device.open();
            device.write(1, filled(1));
            try (MemoryDevice copy = device.snapshot()) {
                device.write(1, filled(2));
                copy.open();
                byte[] found = new byte[512];
                copy.read(1, found);
                assertEquals(1, found[511]);
                assertEquals(device.name(), copy.name());
            }
        }
    }

    private static byte[] filled(int value) {
        byte[] block = new byte[512];
        Arrays.fill(block, (byte) value);
        return block;
    }
}

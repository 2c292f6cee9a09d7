package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;

/** Memory of the caller that is freed during a transfer. */
class FreedMemoryTest {
    private static final int BLOCKS = 8;

    /**
     * Fault: when the caller's memory was freed between the write to the inner device and the copy
     * to the cache, the cache kept bytes of other blocks at that address, and never kept a block
     * near it again.
     */
    @Test
    void aCacheKeepsNothingOfFreedMemory() throws Exception {
        ForeignMemory memory = ForeignMemory.shared();
        ByteBuffer buffer = memory.allocate(BLOCKS * 512);
        Device inner = new ForwardingDevice(new MemoryDevice(512, 1024)) {
            @Override
            public void write(long address, ByteBuffer from) throws DeviceException {
                super.write(address, from);
                if (from.isDirect()) {
                    memory.close();
                }
            }
        };
        byte[] data = new byte[BLOCKS * 512];
        Arrays.fill(data, (byte) 7);
        buffer.put(data).flip();
        try (CachedDevice cached = new CachedDevice(inner, 1 << 20)) {
            cached.open();
            cached.write(0, buffer);
            byte[] found = new byte[BLOCKS * 512];
            for (int block = 0; block < BLOCKS; block++) {
                byte[] one = new byte[512];
                cached.read(block, one);
                System.arraycopy(one, 0, found, block * 512, one.length);
                cached.read(block, one);
                assertEquals(block + 1, cached.hits(), "kept after the first read");
            }
            assertArrayEquals(data, found);
        }
    }
}

package org.lunarsan.bench.contestant;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** The bench's own RAID. */
class TwoTargetsTest {
    private static final int BLOCK = 512;
    private static final int STRIPE = 4 * BLOCK;

    /** A contestant in memory. */
    private static final class Memory implements Contestant {
        private final byte[] bytes = new byte[64 * BLOCK];

        @Override
        public int blockSize() {
            return BLOCK;
        }

        @Override
        public long blockCount() {
            return bytes.length / BLOCK;
        }

        @Override
        public void read(long address, byte[] buffer) {
            System.arraycopy(bytes, (int) address * BLOCK, buffer, 0, buffer.length);
        }

        @Override
        public void write(long address, byte[] buffer) throws IOException {
            if (address == 0) {
                throw new IOException("the first block is bad");
            }
            System.arraycopy(buffer, 0, bytes, (int) address * BLOCK, buffer.length);
        }

        @Override
        public void close() {
        }
    }

    /** Goal: stripes are written to the members in turns, and read back unchanged. */
    @Test
    void stripes() throws Exception {
        Memory first = new Memory();
        Memory second = new Memory();
        byte[] written = new byte[4 * STRIPE];
        OperationData.fill(written, 1);
        byte[] read = new byte[written.length];
        try (Contestant raid = new TwoTargets(List.of(first, second), Shape.RAID0, STRIPE)) {
            raid.write(16, written);
            raid.read(16, read);
        }
        assertArrayEquals(written, read);
        byte[] stripe = new byte[STRIPE];
        first.read(12, stripe);
        assertArrayEquals(Arrays.copyOfRange(written, 2 * STRIPE, 3 * STRIPE), stripe);
        second.read(8, stripe);
        assertArrayEquals(Arrays.copyOfRange(written, STRIPE, 2 * STRIPE), stripe);
    }

    /** Goal: a mirror writes to both members, and a member's failure fails the call. */
    @Test
    void mirrors() throws Exception {
        Memory first = new Memory();
        Memory second = new Memory();
        byte[] written = new byte[STRIPE];
        OperationData.fill(written, 2);
        try (Contestant raid = new TwoTargets(List.of(first, second), Shape.RAID1, STRIPE)) {
            raid.write(3, written);
            assertThrows(IOException.class, () -> raid.write(0, written));
        }
        byte[] read = new byte[STRIPE];
        first.read(3, read);
        assertArrayEquals(written, read);
        second.read(3, read);
        assertArrayEquals(written, read);
    }
}

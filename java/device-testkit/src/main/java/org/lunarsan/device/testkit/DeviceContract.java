package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;

/**
 * The contract of {@link org.lunarsan.device.Device}, as tests. Every device has to pass them; a
 * new one supplies only {@link #make(int, long)}, and its block sizes and count if they differ.
 *
 * <p>JUnit creates an object for each test; the tests start threads of their own.
 */
public abstract class DeviceContract extends ConcurrencyContract {
    /** For subclasses. */
    protected DeviceContract() {}

    /** Goal: blocks that were never written are zeroes in a device created by the test. */
    @Test
    void beginsWithZeroes() throws Exception {
        assertHolds(0, filled(0, 16));
        assertHolds(device.blockCount() - 16, filled(0, 16));
    }

    /** Goal: data written at the beginning, in the middle and at the end is read back. */
    @Test
    void readsBackWhatWasWritten() {
        Seed.run(random -> {
            long end = device.blockCount();
            for (long address : new long[] {0, 1, end / 2, end / 3, end - 4}) {
                byte[] data = bytes(random, 4);
                device.write(address, data);
                assertHolds(address, data);
            }
        });
    }

    /** Goal: a write changes only its own blocks. */
    @Test
    void changesOnlyTheWrittenBlocks() throws Exception {
        device.write(10, filled(1, 5));
        device.write(12, filled(2, 1));
        assertHolds(9, filled(0, 1));
        assertHolds(10, filled(1, 2));
        assertHolds(12, filled(2, 1));
        assertHolds(13, filled(1, 2));
        assertHolds(15, filled(0, 1));
    }

    /** Goal: the whole device can be written and read by one call. */
    @Test
    void movesTheWholeDeviceAtOnce() {
        Seed.run(random -> {
            byte[] all = bytes(random, (int) device.blockCount());
            device.write(0, all);
            assertHolds(0, all);
            device.flush();
            assertHolds(0, all);
        });
    }

    /** Goal: buffers in the heap and outside, whole, slices, big and little endian all work. */
    @Test
    void takesBuffersOfAllKinds() {
        Seed.run(random -> {
            int size = device.blockSize();
            ByteBuffer[] buffers = {
                ByteBuffer.allocate(2 * size),
                ByteBuffer.allocateDirect(2 * size),
                ByteBuffer.allocate(4 * size + 3).position(3).limit(3 + 2 * size).slice(),
                ByteBuffer.allocateDirect(4 * size).position(7).limit(7 + 2 * size).slice(),
                ByteBuffer.allocate(2 * size).order(ByteOrder.LITTLE_ENDIAN),
            };
            for (ByteBuffer buffer : buffers) {
                byte[] data = bytes(random, 2);
                device.write(20, copyOf(data, buffer));
                assertEquals(2 * size, buffer.position());
                assertHolds(20, data);
                buffer.clear().put(new byte[2 * size]).flip();
                device.read(20, buffer);
                assertEquals(2 * size, buffer.position());
                byte[] found = new byte[2 * size];
                buffer.flip().get(found);
                assertArrayEquals(data, found);
            }
        });
    }

    /** Goal: only the remaining bytes of a buffer are moved; its position then equals its limit. */
    @Test
    void movesWhatRemainsOfABuffer() throws Exception {
        int size = device.blockSize();
        for (boolean direct : new boolean[] {false, true}) {
            ByteBuffer buffer = direct
                    ? ByteBuffer.allocateDirect(5 * size)
                    : ByteBuffer.allocate(5 * size);
            buffer.put(filled(3, 5)).position(size + 1).limit(3 * size + 1);
            device.write(30, filled(9, 4));
            device.write(31, buffer);
            assertEquals(3 * size + 1, buffer.position());
            assertEquals(3 * size + 1, buffer.limit());
            assertHolds(30, filled(9, 1));
            assertHolds(31, filled(3, 2));
            assertHolds(33, filled(9, 1));
            buffer.position(size + 1);
            device.read(33, buffer.limit(2 * size + 1));
            assertEquals(3, buffer.get(size), "the byte before");
            assertEquals(9, buffer.get(size + 1), "the first");
            assertEquals(9, buffer.get(2 * size), "the last");
            assertEquals(3, buffer.limit(5 * size).get(2 * size + 1), "the byte after");
        }
    }

    /** Goal: a read-only buffer can be written from, and its bytes stay unchanged. */
    @Test
    void writesFromReadOnlyBuffers() {
        Seed.run(random -> {
            byte[] data = bytes(random, 3);
            ByteBuffer buffer = ByteBuffer.wrap(data.clone()).asReadOnlyBuffer();
            device.write(40, buffer);
            assertEquals(buffer.limit(), buffer.position());
            assertHolds(40, data);
            byte[] same = data.clone();
            device.write(40, same);
            assertArrayEquals(data, same);
        });
    }

    /** Goal: the caller may reuse its buffer once the call has returned. */
    @Test
    void keepsNoBuffer() throws Exception {
        byte[] data = filled(5, 2);
        device.write(50, data);
        Arrays.fill(data, (byte) 6);
        assertHolds(50, filled(5, 2));
        device.read(50, data);
        Arrays.fill(data, (byte) 7);
        assertHolds(50, filled(5, 2));
    }

    /** Goal: flushed data is there after the device was opened again. */
    @Test
    void reopenKeepsFlushedData() {
        Seed.run(random -> {
            byte[] data = bytes(random, (int) device.blockCount());
            device.write(0, data);
            device.flush();
            device = reopen(device);
            assertHolds(0, data);
            byte[] other = bytes(random, 1);
            device.write(1, other);
            device.flush();
            device = reopen(device);
            assertHolds(1, other);
        });
    }

    /** Goal: flushing without a write succeeds, and so does flushing twice. */
    @Test
    void flushesAnyNumberOfTimes() throws Exception {
        device.flush();
        device.write(0, filled(1, 1));
        device.flush();
        device.flush();
        assertHolds(0, filled(1, 1));
    }

    /** Goal: only unmapped blocks become zeroes, or stay as before if zeroes are not guaranteed. */
    @Test
    void unmapsOnlyTheGivenBlocks() throws Exception {
        device.write(0, filled(4, 64));
        device.unmap(8, 40);
        assertHolds(0, filled(4, 8));
        assertHolds(48, filled(4, 16));
        assertUnmapped(8, 40, (byte) 4);
        device.write(10, filled(5, 1));
        assertHolds(10, filled(5, 1));
        device.unmap(0, device.blockCount());
        assertUnmapped(48, 16, (byte) 4);
    }

    private void assertUnmapped(long address, int blocks, byte before) throws DeviceException {
        byte[] found = read(address, blocks);
        for (int block = 0; block < blocks; block++) {
            byte first = found[block * device.blockSize()];
            if (first == before && !device.unmapReadsZeroes()) {
                continue;
            }
            assertEquals(0, first, "block " + (address + block) + " after unmap");
        }
    }

    /** Goal: thousands of random operations leave the content of a plain array. */
    @Test
    void agreesWithAModel() {
        Seed.run(random -> {
            byte[] model = new byte[(int) device.blockCount() * device.blockSize()];
            for (int step = 0; step < operations(); step++) {
                step(random, model);
            }
            assertHolds(0, model);
            device.flush();
            device = reopen(device);
            assertHolds(0, model);
        });
    }

    private void step(Random random, byte[] model) throws DeviceException {
        int size = device.blockSize();
        int blocks = 1 + random.nextInt(random.nextInt(8) == 0 ? 48 : 6);
        int first = random.nextInt((int) device.blockCount() - blocks + 1);
        int at = first * size;
        switch (random.nextInt(16)) {
            case 0 -> device.flush();
            case 1 -> {
                device.unmap(first, blocks);
                // If zeroes are not guaranteed, the model takes the content from the device.
                byte[] found = device.unmapReadsZeroes()
                        ? new byte[blocks * size]
                        : read(first, blocks);
                System.arraycopy(found, 0, model, at, found.length);
            }
            case 2, 3, 4, 5, 6, 7, 8 -> {
                byte[] data = bytes(random, blocks);
                device.write(first, data);
                System.arraycopy(data, 0, model, at, data.length);
            }
            default -> assertHolds(first, Arrays.copyOfRange(model, at, at + blocks * size));
        }
    }
}

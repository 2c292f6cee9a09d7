package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.OutOfRangeException;
import org.lunarsan.device.UnalignedException;

/** Shape, life, and refusals before any I/O. */
abstract class RefusalContract extends BufferContract {
    /** Goal: the device has the requested shape, and reports it. */
    @Test
    void hasTheShapeItWasMadeWith() {
        assertEquals(blockSize(), device.blockSize());
        assertTrue(device.blockCount() >= blockCount());
        assertFalse(device.name().isEmpty());
        assertFalse(device.isReadOnly());
    }

    /** Goal: every block size works, the first and the last block included. */
    @Test
    void worksWithEveryBlockSize() throws Exception {
        for (int size : blockSizes()) {
            device.close();
            device = make(size, blockCount());
            device.open();
            assertEquals(size, device.blockSize());
            byte[] block = filled(7, 1);
            device.write(0, block);
            device.write(device.blockCount() - 1, block);
            assertHolds(0, block);
            assertHolds(1, filled(0, 1));
            assertHolds(device.blockCount() - 1, block);
        }
    }

    /** Goal: name, shape and content survive close and open. */
    @Test
    void canBeOpenedAgain() throws Exception {
        String name = device.name();
        long blocks = device.blockCount();
        device.write(3, filled(9, 2));
        device.flush();
        device = reopen(device);
        assertEquals(name, device.name());
        assertEquals(blocks, device.blockCount());
        assertHolds(3, filled(9, 2));
    }

    /** Goal: a second owner is refused, and the first is not affected. */
    @Test
    void refusesToBeOpenedTwice() throws Exception {
        assertThrows(DeviceOpenException.class, device::open);
        device.write(0, filled(1, 1));
        assertHolds(0, filled(1, 1));
    }

    /** Goal: closing twice, or before opening, does nothing. */
    @Test
    void mayBeClosedTwice() throws Exception {
        device.close();
        device.close();
        device = make(blockSize(), blockCount());
        device.close();
        device.open();
        assertHolds(0, filled(0, 1));
    }

    /** Goal: a closed device refuses everything, naming device and operation. */
    @Test
    void refusesAllWhenClosed() throws Exception {
        device.close();
        byte[] block = new byte[blockSize()];
        Class<DeviceClosedException> closed = DeviceClosedException.class;
        assertRefused(closed, Operation.READ, 1, () -> device.read(1, block));
        assertRefused(closed, Operation.WRITE, 2, () -> device.write(2, block));
        assertRefused(closed, Operation.UNMAP, 3, () -> device.unmap(3, 1));
        assertRefused(closed, Operation.FLUSH, DeviceException.NO_ADDRESS, device::flush);
        assertThrows(closed, () -> device.read(0, new byte[0]));
        assertThrows(closed, () -> device.write(0, ByteBuffer.allocate(0)));
        assertThrows(closed, () -> device.unmap(0, 0));
    }

    /** Goal: a buffer that is no whole number of blocks is refused, and nothing is written. */
    @Test
    void refusesPartsOfBlocks() throws Exception {
        int size = blockSize();
        for (int bytes : new int[] {1, size - 1, size + 1, 2 * size + size / 2}) {
            byte[] buffer = new byte[bytes];
            buffer[0] = 1;
            Class<UnalignedException> unaligned = UnalignedException.class;
            assertRefused(unaligned, Operation.READ, 0, () -> device.read(0, buffer));
            assertRefused(unaligned, Operation.WRITE, 0, () -> device.write(0, buffer));
            ByteBuffer direct = ByteBuffer.allocateDirect(bytes);
            assertThrows(unaligned, () -> device.write(0, direct));
            assertEquals(0, direct.position());
        }
        assertHolds(0, filled(0, 3));
    }

    /** Goal: blocks past the end are refused, those before it are not touched. */
    @Test
    void refusesBlocksPastTheEnd() throws Exception {
        long end = device.blockCount();
        byte[] two = filled(1, 2);
        Class<OutOfRangeException> outside = OutOfRangeException.class;
        assertRefused(outside, Operation.READ, end - 1, () -> device.read(end - 1, two));
        assertRefused(outside, Operation.WRITE, end - 1, () -> device.write(end - 1, two));
        assertRefused(outside, Operation.READ, end, () -> device.read(end, two));
        assertRefused(outside, Operation.WRITE, end, () -> device.write(end, two));
        assertRefused(outside, Operation.UNMAP, end, () -> device.unmap(end, 1));
        assertRefused(outside, Operation.UNMAP, 1, () -> device.unmap(1, end));
        assertHolds(end - 1, filled(0, 1));
    }

    /** Goal: for huge addresses no product or sum overflows into the device. */
    @Test
    void refusesHugeAddresses() {
        byte[] block = new byte[blockSize()];
        long wraps = Long.MAX_VALUE / blockSize() + 1;
        long[] huge = {Long.MAX_VALUE, Long.MAX_VALUE - 1, wraps, 2 * wraps, 1L << 55, 1L << 32};
        for (long address : huge) {
            if (address >= 0 && address < device.blockCount()) {
                continue;
            }
            assertThrows(OutOfRangeException.class, () -> device.read(address, block));
            assertThrows(OutOfRangeException.class, () -> device.write(address, block));
            assertThrows(OutOfRangeException.class, () -> device.unmap(address, 1));
            assertThrows(OutOfRangeException.class, () -> device.unmap(1, address));
        }
    }

    /** Goal: negative addresses and counts are refused. */
    @Test
    void refusesNegativeNumbers() {
        byte[] block = new byte[blockSize()];
        for (long address : new long[] {-1, -blockSize(), Long.MIN_VALUE}) {
            assertThrows(OutOfRangeException.class, () -> device.read(address, block));
            assertThrows(OutOfRangeException.class, () -> device.write(address, block));
            assertThrows(OutOfRangeException.class, () -> device.read(address, new byte[0]));
            assertThrows(OutOfRangeException.class, () -> device.unmap(address, 1));
            assertThrows(OutOfRangeException.class, () -> device.unmap(0, address));
            assertThrows(OutOfRangeException.class, () -> device.unmap(1, address));
        }
    }

    /** Goal: reads and writes of no bytes are allowed up to the very end, and do nothing. */
    @Test
    void allowsNoBlocksAtAll() throws Exception {
        long end = device.blockCount();
        for (long address : new long[] {0, 1, end - 1, end}) {
            device.read(address, new byte[0]);
            device.write(address, new byte[0]);
            device.read(address, ByteBuffer.allocateDirect(0));
            device.unmap(address, 0);
        }
        byte[] none = new byte[0];
        assertThrows(OutOfRangeException.class, () -> device.read(end + 1, none));
        assertThrows(OutOfRangeException.class, () -> device.write(end + 1, none));
        device.flush();
    }

    /** Goal: reading into a read-only buffer is a programming error. */
    @Test
    void refusesToReadIntoReadOnlyBuffers() {
        ByteBuffer buffer = ByteBuffer.allocate(blockSize()).asReadOnlyBuffer();
        assertThrows(ReadOnlyBufferException.class, () -> device.read(0, buffer));
        assertEquals(0, buffer.position());
    }

    /** Goal: a null buffer is a programming error, for every call. */
    @Test
    void refusesNull() {
        Class<NullPointerException> missing = NullPointerException.class;
        assertThrows(missing, () -> device.read(0, (ByteBuffer) null));
        assertThrows(missing, () -> device.write(0, (ByteBuffer) null));
        assertThrows(missing, () -> device.read(0, (byte[]) null));
        assertThrows(missing, () -> device.write(0, (byte[]) null));
    }

    /** Goal: a refused call leaves the position of its buffer unchanged. */
    @Test
    void leavesThePositionOfRefusedBuffers() {
        ByteBuffer buffer = ByteBuffer.allocate(3 * blockSize()).position(blockSize());
        long end = device.blockCount();
        assertThrows(OutOfRangeException.class, () -> device.read(end - 1, buffer));
        assertThrows(OutOfRangeException.class, () -> device.write(end - 1, buffer));
        assertEquals(blockSize(), buffer.position());
        assertEquals(3 * blockSize(), buffer.limit());
    }
}

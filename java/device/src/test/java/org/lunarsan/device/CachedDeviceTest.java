package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class CachedDeviceTest {
    private final FaultyDevice disk = new FaultyDevice(new MemoryDevice(512, 1024), 0);
    private final CachedDevice cached = new CachedDevice(disk, 64 * 512);

    @BeforeEach
    void open() throws Exception {
        cached.open();
    }

    @AfterEach
    void close() throws Exception {
        cached.close();
    }

    private byte first(long address) throws DeviceException {
        byte[] block = new byte[512];
        cached.read(address, block);
        return block[0];
    }

    private static byte[] blocks(int value, int count) {
        byte[] blocks = new byte[512 * count];
        for (int block = 0; block < count; block++) {
            blocks[512 * block] = (byte) value;
        }
        return blocks;
    }

    /** Goal: the second read of a block, and one after a write, do no I/O. */
    @Test
    void answersFromMemory() throws Exception {
        assertEquals(0, first(5));
        assertEquals(0, first(5));
        cached.write(9, blocks(3, 1));
        assertEquals(3, first(9));
        assertEquals(1, disk.seen(Operation.READ));
        assertEquals(1, disk.seen(Operation.WRITE));
        assertEquals(2, cached.hits());
        assertEquals(1, cached.misses());
    }

    /** Goal: after a failed flush, reads return the content of the device, not kept blocks. */
    @Test
    void dropsUnflushedWritesAfterAFailedFlush() throws Exception {
        cached.write(7, blocks(1, 1));
        disk.inject(Fault.fail().on(Operation.FLUSH).times(1));
        assertThrows(MediumException.class, cached::flush);
        disk.heal();
        disk.write(7, blocks(2, 1));
        assertEquals(2, first(7));
    }

    /**
     * Goal: when the inner device may have lost writes, reads return the content of the device, not
     * kept blocks.
     */
    @Test
    void dropsLostBlocks() throws Exception {
        AtomicLong losses = new AtomicLong();
        Device inner = new ForwardingDevice(new MemoryDevice("lossy", new Geometry(512, 16))) {
            @Override
            public long losses() {
                return losses.get();
            }
        };
        try (CachedDevice over = new CachedDevice(inner, 4096)) {
            over.open();
            over.write(1, blocks(1, 1));
            inner.write(1, blocks(0, 1)); // as after a power cut
            losses.incrementAndGet();
            byte[] found = new byte[512];
            over.read(1, found);
            assertEquals(0, found[0]);
            assertEquals(1, over.losses());
        }
    }

    /** Goal: of a run of blocks, only the part from the first to the last missing block is read. */
    @Test
    void readsOnlyWhatIsMissing() throws Exception {
        cached.write(10, blocks(1, 2));
        cached.write(15, blocks(2, 1));
        byte[] found = new byte[6 * 512];
        cached.read(10, found);
        assertEquals(1, found[0]);
        assertEquals(0, found[2 * 512]);
        assertEquals(2, found[5 * 512]);
        assertEquals(3, cached.misses());
        cached.read(10, found);
        assertEquals(3, cached.misses());
    }

    /** Goal: a failed write leaves nothing in memory: the blocks are read from the device again. */
    @Test
    void dropsBlocksOfFailedWrites() throws Exception {
        cached.write(7, blocks(1, 2));
        disk.inject(Fault.of(new Fault.Tear(1)).on(Operation.WRITE).times(1));
        assertThrows(MediumException.class, () -> cached.write(7, blocks(2, 2)));
        assertEquals(2, first(7));
        assertEquals(1, first(8));
        assertEquals(2, cached.misses());
        disk.inject(Fault.fail().on(Operation.UNMAP).times(1));
        assertThrows(MediumException.class, () -> cached.unmap(7, 1));
        assertEquals(2, first(7));
        cached.unmap(7, 1);
        assertEquals(0, first(7));
    }

    /** Goal: the kept blocks stay within the allowed bytes. */
    @Test
    void keepsNoMoreThanAllowed() throws Exception {
        for (int round = 0; round < 2; round++) {
            for (long address = 0; address < 1024; address++) {
                first(address);
            }
        }
        long before = cached.hits();
        for (long address = 0; address < 1024; address++) {
            first(address);
        }
        assertEquals(0, cached.hits() - before, "a scan longer than the cache finds nothing");
        for (int block = 0; block < 1024; block++) {
            cached.write(block, blocks(1, 1));
        }
        disk.inject(Fault.fail().on(Operation.READ));
        int kept = 0;
        for (long address = 0; address < 1024; address++) {
            try {
                first(address);
                kept++;
            } catch (MediumException exception) {
                assertEquals(address, exception.address());
            }
        }
        assertEquals(64, kept);
    }

    /** Goal: a block whose read overlapped with a write is not kept. */
    @Test
    void doesNotKeepStaleReads() throws Exception {
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).times(1));
        Thread writer = Thread.ofVirtual().start(() -> {
            try {
                cached.write(3, blocks(1, 1));
            } catch (DeviceException failure) {
                throw new AssertionError(failure);
            }
        });
        disk.awaitHanging(1);
        assertEquals(0, first(3), "read while the write has not reached the disk");
        disk.release();
        writer.join();
        assertEquals(1, first(3));
    }

    /**
     * Fault: a block whose read overlapped with a write was kept if the write had begun before a
     * flush failed: the cache also dropped the record of the pending write, kept the block that the
     * write replaced, and returned this block forever.
     */
    @Test
    void doesNotKeepStaleReadsAfterAFailedFlush() throws Exception {
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).times(1));
        Thread writer = Thread.ofVirtual().start(() -> {
            try {
                cached.write(3, blocks(1, 1));
            } catch (DeviceException failure) {
                throw new AssertionError(failure);
            }
        });
        disk.awaitHanging(1);
        disk.inject(Fault.fail().on(Operation.FLUSH).times(1));
        assertThrows(MediumException.class, cached::flush);
        assertEquals(0, first(3), "read while the write has not reached the disk");
        disk.release();
        writer.join();
        assertEquals(1, first(3));
    }

    /** Holds the first read or write between its completion and its return. */
    private static final class LateDevice extends ForwardingDevice {
        private final CountDownLatch done = new CountDownLatch(1);
        private final CountDownLatch proceed = new CountDownLatch(1);

        LateDevice() {
            super(new MemoryDevice(512, 64));
        }

        @Override
        public void read(long address, ByteBuffer buffer) throws DeviceException {
            super.read(address, buffer);
            stop();
        }

        @Override
        public void write(long address, ByteBuffer buffer) throws DeviceException {
            super.write(address, buffer);
            stop();
        }

        private void stop() {
            if (done.getCount() > 0) {
                done.countDown();
                try {
                    proceed.await();
                } catch (InterruptedException unexpected) {
                    throw new AssertionError(unexpected);
                }
            }
        }
    }

    /** Goal: data that was read before a write and returns after it is not kept. */
    @Test
    void doesNotKeepLateReads() throws Exception {
        LateDevice late = new LateDevice();
        try (CachedDevice slow = new CachedDevice(late, 64 * 512)) {
            slow.open();
            byte[] old = new byte[1024];
            CompletableFuture<Void> read = AsyncDevice.of(slow).readAsync(3, ByteBuffer.wrap(old));
            late.done.await();
            slow.write(3, blocks(1, 1));
            slow.unmap(4, 1);
            late.proceed.countDown();
            read.join();
            assertEquals(0, old[0]);
            byte[] found = new byte[512];
            slow.read(3, found);
            assertEquals(1, found[0]);
        }
    }

    /** Goal: of two concurrent writes the one that returns last need not be the later one. */
    @Test
    void keepsNeitherOfTwoConcurrentWrites() throws Exception {
        LateDevice late = new LateDevice();
        try (CachedDevice slow = new CachedDevice(late, 64 * 512)) {
            slow.open();
            CompletableFuture<Void> first =
                    AsyncDevice.of(slow).writeAsync(3, ByteBuffer.wrap(blocks(1, 1)));
            late.done.await();
            slow.write(3, blocks(2, 1));
            late.proceed.countDown();
            first.join();
            byte[] found = new byte[512];
            slow.read(3, found);
            assertEquals(2, found[0]);
        }
    }

    /** Goal: closing drops everything. */
    @Test
    void isEmptyAfterClosing() throws Exception {
        cached.write(1, blocks(1, 1));
        cached.close();
        assertThrows(DeviceClosedException.class, () -> first(1));
        cached.open();
        assertEquals(1, first(1));
        assertEquals(1, disk.seen(Operation.READ));
    }
}

package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** One transfer at a time, so that a hanging first request makes all others wait. */
class CoalescingDeviceTest {
    private final FaultyDevice disk = new FaultyDevice(new MemoryDevice(512, 4096), 0);
    private final List<CompletableFuture<Void>> started = new ArrayList<>();
    private CoalescingDevice queue;

    private void open(QueueOptions options) throws Exception {
        queue = new CoalescingDevice(disk, options);
        queue.open();
    }

    @AfterEach
    void close() throws Exception {
        queue.close();
    }

    /** Makes a read hang in the only worker; all others wait. */
    private void block() throws Exception {
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.READ).at(4000, 1).times(1));
        read(4000, 1);
        disk.awaitHanging(1);
    }

    private ByteBuffer read(long address, int blocks) {
        ByteBuffer into = ByteBuffer.allocate(512 * blocks);
        started.add(queue.readAsync(address, into));
        return into;
    }

    private void write(long address, int value, int blocks) {
        byte[] data = new byte[512 * blocks];
        Arrays.fill(data, (byte) value);
        started.add(queue.writeAsync(address, ByteBuffer.wrap(data)));
    }

    private void proceed() {
        disk.release();
        CompletableFuture.allOf(started.toArray(CompletableFuture[]::new)).join();
    }

    private static QueueOptions oneAtATime() {
        return QueueOptions.DEFAULT.withDepth(1);
    }

    /** Goal: waiting neighbours become one transfer, before and after, in any order. */
    @Test
    void joinsNeighbours() throws Exception {
        open(oneAtATime());
        block();
        for (int block : new int[] {5, 3, 4, 7, 6, 20}) {
            write(block, block, 1);
        }
        for (int block : new int[] {101, 100, 102}) {
            read(block, 1);
        }
        proceed();
        assertEquals(2, disk.seen(Operation.WRITE), "3 to 7, and 20");
        assertEquals(2, disk.seen(Operation.READ), "the one that hung, and 100 to 102");
        for (int block : new int[] {3, 4, 5, 6, 7, 20}) {
            byte[] found = new byte[512];
            queue.read(block, found);
            assertEquals(block, found[100]);
        }
    }

    /** Goal: a joined transfer is no longer than allowed. */
    @Test
    void joinsNoFurtherThanAllowed() throws Exception {
        open(oneAtATime().withTransferBytesMax(4 * 512));
        block();
        for (int block = 0; block < 10; block++) {
            write(block, 1, 1);
        }
        proceed();
        assertEquals(3, disk.seen(Operation.WRITE));
    }

    /** Goal: requests to the same blocks keep their order, even if no caller waits for them. */
    @Test
    void keepsTheOrderOfOverlapping() throws Exception {
        open(QueueOptions.DEFAULT);
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(10, 1).times(1));
        write(10, 1, 2);
        disk.awaitHanging(1);
        ByteBuffer before = read(11, 1);
        write(11, 2, 2);
        ByteBuffer after = read(10, 3);
        ByteBuffer elsewhere = read(20, 1);
        started.removeLast().join();
        assertEquals(512, elsewhere.position());
        assertEquals(0, before.position(), "waits for the write that hangs");
        proceed();
        assertEquals(1, before.get(0));
        assertEquals(1, after.get(0));
        assertEquals(2, after.get(512));
        assertEquals(2, after.get(1024));
    }

    /** Goal: a flush waits for the writes before it, later writes for the flush, reads do not. */
    @Test
    void flushesInOrder() throws Exception {
        open(QueueOptions.DEFAULT);
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(1, 1).times(1));
        write(1, 1, 1);
        disk.awaitHanging(1);
        CompletableFuture<Void> flush = queue.flushAsync();
        CompletableFuture<Void> later = queue.writeAsync(50, ByteBuffer.allocate(512));
        queue.read(60, new byte[512]);
        assertFalse(flush.isDone());
        assertFalse(later.isDone());
        assertEquals(0, disk.seen(Operation.FLUSH));
        disk.inject(Fault.of(new Fault.Hang()).on(Operation.FLUSH).times(1));
        disk.release();
        disk.awaitHanging(1);
        queue.read(60, new byte[512]);
        assertEquals(1, disk.seen(Operation.WRITE));
        disk.release();
        flush.join();
        later.join();
    }

    /** Goal: a bad block in a joined transfer fails only the requests for it. */
    @Test
    void aBadBlockFailsOnlyRequestsThatCoverIt() throws Exception {
        open(oneAtATime());
        block();
        disk.inject(Fault.fail().at(6, 1));
        for (int block = 4; block < 9; block++) {
            write(block, 9, 1);
        }
        disk.release();
        for (int index = 1; index < started.size(); index++) {
            CompletableFuture<Void> write = started.get(index);
            if (index - 1 + 4 != 6) {
                write.join();
                continue;
            }
            CompletionException failure = assertThrows(CompletionException.class, write::join);
            assertEquals(6, ((MediumException) failure.getCause()).address());
        }
    }

    /** Goal: a caller waits while the queue is full. */
    @Test
    void boundsTheQueue() throws Exception {
        open(oneAtATime().withRequestsMax(3));
        block();
        read(1, 1);
        read(5, 1);
        Thread fourth = Thread.ofPlatform().start(() -> read(9, 1));
        // There is no other reason to wait: the only worker hangs, and holds no lock.
        while (fourth.isAlive() && fourth.getState() != Thread.State.WAITING) {
            Thread.onSpinWait();
        }
        assertTrue(fourth.isAlive(), "a full queue accepted a request");
        disk.release();
        fourth.join();
        proceed();
    }

    /** Goal: a sequential reader is served from prefetched blocks, up to the end. */
    @Test
    void readsAhead() throws Exception {
        open(QueueOptions.DEFAULT.withPrefetchBytes(64 * 512));
        for (int block = 0; block < 4096; block++) {
            queue.write(block, ByteBuffer.allocate(512).putInt(0, block));
        }
        for (int block = 0; block < 4096; block++) {
            ByteBuffer found = ByteBuffer.allocate(512);
            queue.read(block, found);
            assertEquals(block, found.getInt(0));
        }
        long reads = disk.seen(Operation.READ);
        assertTrue(reads < 80, reads + " reads for 4096 blocks");
    }

    /** Goal: a random reader causes no prefetching. */
    @Test
    void readsNothingAheadOfRandomReaders() throws Exception {
        open(QueueOptions.DEFAULT.withPrefetchBytes(64 * 512));
        for (int step = 0; step < 200; step++) {
            queue.read(step * 37L % 4000, new byte[512]);
        }
        assertEquals(200, disk.seen(Operation.READ));
    }

    /** Goal: blocks that were prefetched and then written are read anew. */
    @Test
    void writesDropReadAheadBlocks() throws Exception {
        open(QueueOptions.DEFAULT.withPrefetchBytes(64 * 512));
        byte[] found = new byte[512];
        for (int block = 0; block < 6; block++) {
            queue.read(block, found);
        }
        byte[] data = new byte[512];
        data[0] = 8;
        queue.write(7, data);
        queue.read(6, found);
        assertEquals(0, found[0]);
        queue.read(7, found);
        assertEquals(8, found[0]);
        queue.unmap(7, 1);
        queue.read(7, found);
        assertEquals(0, found[0]);
    }

    /**
     * Fault: prefetched blocks survived a power loss of the device: a read returned writes that the
     * device had lost and reported as lost.
     */
    @Test
    void aReportedLossDropsReadAheadBlocks() throws Exception {
        AtomicLong losses = new AtomicLong();
        Device lossy = new ForwardingDevice(disk) {
            @Override
            public long losses() {
                return losses.get();
            }
        };
        queue = new CoalescingDevice(lossy, QueueOptions.DEFAULT.withPrefetchBytes(512 * 32));
        queue.open();
        write(0, 1, 64);
        proceed();
        readSequentially(0, 4);
        disk.write(4, new byte[512 * 60]); // as if the power had gone
        ByteBuffer before = read(4, 1);
        proceed();
        assertEquals(1, before.get(0), "read ahead, and nothing is reported");
        losses.incrementAndGet();
        ByteBuffer after = read(5, 1);
        proceed();
        assertEquals(0, after.get(0), "served from prefetched blocks");
    }

    /** Goal: the same when reads that the device answered may be stale. */
    @Test
    void staleReadsDropReadAheadBlocks() throws Exception {
        AtomicLong staleReads = new AtomicLong();
        Device unreliable = new ForwardingDevice(disk) {
            @Override
            public long staleReads() {
                return staleReads.get();
            }
        };
        queue = new CoalescingDevice(unreliable, QueueOptions.DEFAULT.withPrefetchBytes(512 * 32));
        queue.open();
        write(0, 1, 64);
        proceed();
        readSequentially(0, 4);
        disk.write(4, new byte[512 * 60]); // as if the power had gone
        staleReads.incrementAndGet();
        ByteBuffer after = read(5, 1);
        proceed();
        assertEquals(0, after.get(0), "served from prefetched blocks");
    }

    /** Fault: the same after a failed flush, which a device need not count as a loss. */
    @Test
    void aFailedFlushDropsReadAheadBlocks() throws Exception {
        open(QueueOptions.DEFAULT.withPrefetchBytes(512 * 32));
        write(0, 1, 64);
        proceed();
        readSequentially(0, 4);
        disk.inject(Fault.fail().on(Operation.FLUSH).times(1));
        assertThrows(MediumException.class, queue::flush);
        disk.heal();
        disk.write(4, new byte[512 * 60]);
        ByteBuffer after = read(4, 1);
        proceed();
        assertEquals(0, after.get(0), "served from prefetched blocks");
    }

    /**
     * Returns when the blocks prefetched for the reader are available: the last read waited for
     * them.
     */
    private void readSequentially(int first, int blocks) {
        for (int block = first; block < first + blocks; block++) {
            read(block, 1);
            proceed();
        }
    }

    /** Goal: a bad block in a prefetch fails only the request for that block. */
    @Test
    void failedReadAheadIsNotReported() throws Exception {
        open(QueueOptions.DEFAULT.withPrefetchBytes(64 * 512));
        disk.inject(Fault.fail().on(Operation.READ).at(40, 1));
        byte[] found = new byte[512];
        for (int block = 0; block < 40; block++) {
            queue.read(block, found);
        }
        MediumException failure =
                assertThrows(MediumException.class, () -> queue.read(40, found));
        assertEquals(1, failure.blocks());
        queue.read(41, found);
    }

    /** Goal: a transfer that throws an unexpected exception fails only its requests. */
    @Test
    void anyThrowableFailsTheRequests() throws Exception {
        Device broken = new ForwardingDevice(disk) {
            @Override
            public void write(long address, ByteBuffer buffer) {
                throw new OutOfMemoryError("Cannot reserve direct buffer memory");
            }
        };
        queue = new CoalescingDevice(broken, oneAtATime());
        queue.open();
        block();
        for (int block = 0; block < 4; block++) {
            write(block, 1, 1);
        }
        disk.release();
        for (CompletableFuture<Void> request : started.subList(1, 5)) {
            Throwable failure = request.handle((done, thrown) -> thrown)
                    .get(1, TimeUnit.MINUTES);
            assertEquals(OutOfMemoryError.class, failure.getClass());
        }
        queue.read(0, new byte[512]);
    }

    /** Goal: closing fails requests that have not begun, and no caller waits for ever. */
    @Test
    void closingFailsWaitingRequests() throws Exception {
        open(oneAtATime());
        block();
        write(1, 1, 1);
        write(2, 1, 1);
        queue.close();
        for (CompletableFuture<Void> request : started) {
            Throwable failure = request.handle((done, thrown) -> thrown).join();
            assertEquals(DeviceClosedException.class, failure.getClass());
        }
        assertEquals(0, disk.seen(Operation.WRITE));
    }
}

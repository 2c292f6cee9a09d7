package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/**
 * The contract of {@link AsyncDevice} for transfers that are abandoned while an inner device hangs,
 * as tests. The tests create the inner devices.
 *
 * <p>JUnit creates an object for each test; the tests start threads of their own.
 */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
public abstract class HangingContract {
    private static final int BLOCK = 512;
    /** Blocks of each inner device: 2 MiB of data in addition to the metadata of pools. */
    private static final int INNER_BLOCKS = 8192;
    /** Blocks that a test writes. */
    private static final int AT = 8;
    private static final int LENGTH = 4;
    /** Blocks that no test uses before it reads them, so that no cache has them. */
    private static final int UNCACHED = 1024;
    private static final int UNCACHED_STEP = 64;

    private final List<FaultyDevice> innerDevices = new ArrayList<>();
    private AsyncDevice device;

    /** For subclasses. */
    protected HangingContract() {}

    /**
     * Creates the device under test.
     *
     * @param innerDevices the inner devices, closed and blank; each hangs when a test requires it
     * @return closed; the contract opens and closes it
     * @throws Exception when it cannot be created
     */
    protected abstract AsyncDevice make(List<? extends Device> innerDevices) throws Exception;

    /**
     * Number of inner devices.
     *
     * @return the count, at least 1
     */
    protected int innerDeviceCount() {
        return 1;
    }

    @BeforeEach
    void openDevice() throws Exception {
        for (int index = 0; index < innerDeviceCount(); index++) {
            innerDevices.add(new FaultyDevice(
                    new MemoryDevice("inner" + index, new Geometry(BLOCK, INNER_BLOCKS)),
                    index));
        }
        device = make(innerDevices);
        device.open();
    }

    @AfterEach
    void closeDevice() throws Exception {
        releaseAll();
        device.close();
    }

    private static byte[] filled(int value, int blocks) {
        byte[] data = new byte[BLOCK * blocks];
        Arrays.fill(data, (byte) value);
        return data;
    }

    private static void fill(ByteBuffer buffer, int value) {
        for (int at = 0; at < buffer.limit(); at++) {
            buffer.put(at, (byte) value);
        }
    }

    /** Makes the next such operation of each inner device hang. */
    private void hang(Operation operation) {
        innerDevices.forEach(one -> one.inject(Fault.of(new Fault.Hang()).on(operation).times(1)));
    }

    /** Returns when any inner device hangs. */
    private void awaitHanging() throws InterruptedException {
        CountDownLatch anyHangs = new CountDownLatch(1);
        List<Thread> waiting = new ArrayList<>();
        for (FaultyDevice one : innerDevices) {
            waiting.add(Thread.ofVirtual().start(() -> {
                try {
                    one.awaitHanging(1);
                    anyHangs.countDown();
                } catch (InterruptedException ignored) {
                    // Another one hangs.
                }
            }));
        }
        anyHangs.await();
        for (Thread thread : waiting) {
            thread.interrupt();
            thread.join();
        }
    }

    /** Releases all hanging operations, and makes no more hang. */
    private void releaseAll() {
        innerDevices.forEach(FaultyDevice::heal);
        innerDevices.forEach(FaultyDevice::release);
    }

    private interface Call {
        void run() throws DeviceException;
    }

    private static CompletableFuture<Void> started(Call call) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread.ofPlatform().daemon().start(() -> {
            try {
                call.run();
                done.complete(null);
            } catch (Throwable failure) {
                done.completeExceptionally(failure);
            }
        });
        return done;
    }

    private ByteBuffer buffer(ExternalCompletion completion) {
        return completion.ordinal() % 2 == 0
                ? ByteBuffer.allocate(LENGTH * BLOCK) : ByteBuffer.allocateDirect(LENGTH * BLOCK);
    }

    /**
     * Goal: a write that is abandoned ends, even if an inner device hangs. The disk gets the
     * original data, or none; later writes to these blocks wait and replace its data, others do not
     * wait.
     */
    @Test
    void anAbandonedWriteEnds() throws Exception {
        for (ExternalCompletion completion : ExternalCompletion.values()) {
            device.write(AT, filled(1, LENGTH));
            hang(Operation.WRITE);
            ByteBuffer buffer = buffer(completion);
            fill(buffer, 2);
            CompletableFuture<Void> write = device.writeAsync(AT, buffer);
            awaitHanging();
            completion.apply(write);
            assertTrue(write.isDone(), () -> completion + " did not end it");
            assertEquals(0, buffer.position(), completion::toString);
            fill(buffer, 0x66);
            // A fault that no operation has used yet would otherwise make a later operation hang.
            innerDevices.forEach(FaultyDevice::heal);
            CompletableFuture<Void> later =
                    device.writeAsync(AT + 2, ByteBuffer.wrap(filled(3, 1)));
            CompletableFuture<Void> waiting = started(() -> device.write(AT + 3, filled(4, 1)));
            device.write(AT + LENGTH, filled(5, 1));
            assertFalse(later.isDone(), () -> completion + ": a later write did not wait");
            assertFalse(waiting.isDone(), () -> completion + ": a call that waits did not");
            releaseAll();
            later.join();
            waiting.join();
            byte[] found = new byte[(LENGTH + 1) * BLOCK];
            device.read(AT, found);
            for (int at = 0; at < 2 * BLOCK; at++) {
                byte value = found[at];
                assertTrue(value == 1 || value == 2,
                        () -> completion + " let the disk get " + value);
                assertEquals(found[at - at % BLOCK], value, () -> completion + ": a torn block");
            }
            for (int at = 2 * BLOCK; at < found.length; at++) {
                assertEquals(at / BLOCK + 1, found[at], completion + ", byte " + at);
            }
        }
    }

    /** Goal: a read that is abandoned ends at once and no longer changes its buffer. */
    @Test
    void anAbandonedReadLeavesItsBuffer() throws Exception {
        List<ByteBuffer> buffers = new ArrayList<>();
        for (ExternalCompletion completion : ExternalCompletion.values()) {
            int address = UNCACHED + completion.ordinal() * UNCACHED_STEP;
            hang(Operation.READ);
            ByteBuffer buffer = buffer(completion);
            CompletableFuture<Void> read = device.readAsync(address, buffer);
            awaitHanging();
            completion.apply(read);
            assertTrue(read.isDone(), () -> completion + " did not end it");
            assertEquals(0, buffer.position(), completion::toString);
            fill(buffer, 0x11);
            buffers.add(buffer);
            innerDevices.forEach(FaultyDevice::heal);
            device.write(AT, filled(1, 1));
            releaseAll();
        }
        device.flush();
        // Closing ends pending transfers.
        device.close();
        for (ByteBuffer buffer : buffers) {
            assertEquals(ByteBuffer.wrap(filled(0x11, LENGTH)), buffer.clear());
        }
        device.open();
    }

    /** Goal: a flush and an unmap that are abandoned end; the next ones do their work. */
    @Test
    void transfersWithoutABufferEnd() throws Exception {
        for (ExternalCompletion completion : ExternalCompletion.values()) {
            device.write(AT, filled(1, LENGTH));
            for (Operation operation : List.of(Operation.FLUSH, Operation.UNMAP)) {
                hang(operation);
                CompletableFuture<Void> future = operation == Operation.FLUSH
                        ? device.flushAsync() : device.unmapAsync(AT, 1);
                awaitHanging();
                completion.apply(future);
                assertTrue(future.isDone(), () -> completion + " did not end " + operation);
                releaseAll();
            }
            device.unmap(AT, LENGTH);
            device.flush();
            byte[] found = filled(0x5A, LENGTH);
            device.read(AT, found);
            assertEquals(ByteBuffer.wrap(new byte[LENGTH * BLOCK]), ByteBuffer.wrap(found));
        }
    }

    /** Goal: an interrupt ends no call that waits for a hanging device, and is kept. */
    @Test
    void anInterruptIsKept() throws Exception {
        device.write(AT, filled(1, 1));
        hang(Operation.WRITE);
        CompletableFuture<Boolean> kept = new CompletableFuture<>();
        Thread caller = Thread.ofPlatform().daemon().start(() -> {
            try {
                device.write(AT, filled(2, 1));
                kept.complete(Thread.currentThread().isInterrupted());
            } catch (Throwable failure) {
                kept.completeExceptionally(failure);
            }
        });
        awaitHanging();
        caller.interrupt();
        releaseAll();
        assertTrue(kept.join(), "the interrupt is gone");
        byte[] found = new byte[BLOCK];
        device.read(AT, found);
        assertEquals(2, found[0]);
    }

    /** Goal: closing ends in spite of abandoned transfers, and no write follows. */
    @Test
    void closingEndsAfterAbandonedTransfers() throws Exception {
        device.write(AT, filled(1, LENGTH));
        device.flush();
        hang(Operation.WRITE);
        ByteBuffer buffer = ByteBuffer.wrap(filled(2, LENGTH));
        CompletableFuture<Void> write = device.writeAsync(AT, buffer);
        awaitHanging();
        write.cancel(false);
        fill(buffer, 0x66);
        CompletableFuture<Void> closing = started(device::close);
        releaseAll();
        closing.join();
        device.open();
        byte[] found = new byte[BLOCK];
        device.read(AT, found);
        assertTrue(found[0] == 1 || found[0] == 2, () -> "the disk got " + found[0]);
    }
}

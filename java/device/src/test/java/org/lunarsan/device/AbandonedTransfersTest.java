package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Transfers that their callers abandon while the inner device hangs. */
@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class AbandonedTransfersTest {
    /** Every asynchronous device of this module. */
    private static final List<Function<Device, AsyncDevice>> KINDS = List.of(
            AsyncDevice::of,
            CoalescingDevice::new,
            inner -> new CoalescingDevice(AsyncDevice.of(inner)),
            inner -> new CoalescingDevice(
                    inner, QueueOptions.DEFAULT.withPrefetchBytes(8 << 10)));

    /** Counts reads that have ended. */
    private static final class Counting extends ForwardingDevice {
        final Semaphore reads = new Semaphore(0);

        Counting() {
            super(new MemoryDevice(512, 4096));
        }

        @Override
        public void read(long address, ByteBuffer buffer) throws DeviceException {
            super.read(address, buffer);
            reads.release();
        }
    }

    /** A device over one that hangs on demand. */
    private interface Scenario {
        void run(FaultyDevice disk, Counting memory, AsyncDevice device) throws Exception;
    }

    private static void withEachKind(Scenario scenario) throws Exception {
        for (Function<Device, AsyncDevice> kind : KINDS) {
            Counting memory = new Counting();
            FaultyDevice disk = new FaultyDevice(memory, 0);
            try (AsyncDevice device = kind.apply(disk)) {
                device.open();
                scenario.run(disk, memory, device);
            }
        }
    }

    private static byte[] filled(int value, int blocks) {
        byte[] data = new byte[512 * blocks];
        Arrays.fill(data, (byte) value);
        return data;
    }

    private static byte[] read(Device device, long address, int blocks) throws Exception {
        byte[] data = new byte[512 * blocks];
        device.read(address, data);
        return data;
    }

    private static Fault hang(Operation operation) {
        return Fault.of(new Fault.Hang()).on(operation).times(1);
    }

    private static void timeOut(CompletableFuture<Void> future) {
        Throwable thrown = future.orTimeout(1, TimeUnit.MILLISECONDS)
                .handle((done, failure) -> failure).join();
        assertInstanceOf(TimeoutException.class, thrown);
    }

    /**
     * Fault: after orTimeout the inner device wrote data that the caller had put into its buffer
     * since.
     *
     * <p>Goal: the future ends in time though the device hangs, and the disk gets the original
     * data; a later write to one of the blocks waits for it and replaces its data, others do not
     * wait.
     */
    @Test
    void aStartedWriteContinuesWithItsOwnData() throws Exception {
        withEachKind((disk, memory, device) -> {
            disk.inject(hang(Operation.WRITE));
            ByteBuffer buffer = ByteBuffer.wrap(filled(1, 4));
            CompletableFuture<Void> write = device.writeAsync(8, buffer);
            disk.awaitHanging(1);
            timeOut(write);
            assertEquals(0, buffer.position());
            buffer.put(filled(0x66, 4));
            CompletableFuture<Void> later =
                    device.writeAsync(10, ByteBuffer.wrap(filled(2, 1)));
            device.write(20, filled(3, 1));
            assertFalse(later.isDone());
            disk.release();
            later.join();
            assertArrayEquals(filled(1, 2), read(device, 8, 2));
            assertArrayEquals(filled(2, 1), read(device, 10, 1));
            assertArrayEquals(filled(1, 1), read(device, 11, 1));
            assertEquals(4 * 512, buffer.position());
        });
    }

    /** Fault: an older write that had been abandoned could overwrite a later blocking write. */
    @Test
    void callsThatWaitComeAfterAnAbandonedWrite() throws Exception {
        withEachKind((disk, memory, device) -> {
            disk.inject(hang(Operation.WRITE));
            CompletableFuture<Void> write =
                    device.writeAsync(8, ByteBuffer.wrap(filled(1, 4)));
            disk.awaitHanging(1);
            timeOut(write);
            List<Thread> callers = List.of(
                    calls(() -> device.write(8, filled(2, 1))),
                    calls(() -> device.unmap(10, 1)));
            for (Thread caller : callers) {
                while (caller.getState() != Thread.State.WAITING) {
                    assertTrue(caller.isAlive(), "a call did not wait");
                    Thread.onSpinWait();
                }
            }
            disk.release();
            for (Thread caller : callers) {
                caller.join();
            }
            assertArrayEquals(filled(2, 1), read(device, 8, 1));
            assertArrayEquals(filled(1, 1), read(device, 9, 1));
            assertArrayEquals(filled(0, 1), read(device, 10, 1));
        });
    }

    private interface Call {
        void run() throws DeviceException;
    }

    private static Thread calls(Call call) {
        return Thread.ofPlatform().start(() -> {
            try {
                call.run();
            } catch (DeviceException failure) {
                throw new AssertionError(failure);
            }
        });
    }

    /** Fault: after orTimeout a read continued into the buffer of its caller. */
    @Test
    void aStartedReadLeavesTheBufferAlone() throws Exception {
        withEachKind((disk, memory, device) -> {
            device.write(8, filled(1, 4));
            memory.reads.drainPermits();
            disk.inject(hang(Operation.READ));
            ByteBuffer buffer = ByteBuffer.allocate(4 * 512);
            CompletableFuture<Void> read = device.readAsync(8, buffer);
            disk.awaitHanging(1);
            timeOut(read);
            buffer.put(filled(0x11, 4));
            disk.release();
            memory.reads.acquire();
            device.flush();
            assertArrayEquals(filled(0x11, 4), buffer.array());
        });
    }

    /** Goal: a transfer that is abandoned before it begins is never begun. */
    @Test
    void anUnstartedCallIsNotExecuted() throws Exception {
        FaultyDevice disk = new FaultyDevice(new MemoryDevice(512, 4096), 0);
        List<Runnable> tasks = new ArrayList<>();
        try (AsyncDevice device = AsyncDevice.of(disk, tasks::add)) {
            device.open();
            device.writeAsync(0, ByteBuffer.wrap(filled(1, 1))).cancel(false);
            device.readAsync(0, ByteBuffer.allocate(512)).cancel(false);
            tasks.forEach(Runnable::run);
            assertEquals(0, disk.seen(Operation.WRITE) + disk.seen(Operation.READ));
        }
        try (CoalescingDevice queue =
                new CoalescingDevice(disk, QueueOptions.DEFAULT.withDepth(1))) {
            queue.open();
            disk.inject(hang(Operation.READ));
            CompletableFuture<Void> first = queue.readAsync(100, ByteBuffer.allocate(512));
            disk.awaitHanging(1);
            byte[] data = filled(5, 1);
            CompletableFuture<Void> middle = queue.writeAsync(1, ByteBuffer.wrap(data));
            // Transfers of adjacent blocks, which would be joined with it.
            queue.writeAsync(0, ByteBuffer.wrap(filled(4, 1)));
            CompletableFuture<Void> last = queue.writeAsync(2, ByteBuffer.wrap(filled(6, 1)));
            middle.cancel(false);
            Arrays.fill(data, (byte) 0x66);
            disk.release();
            CompletableFuture.allOf(first, last).join();
            assertArrayEquals(filled(4, 1), read(queue, 0, 1));
            assertArrayEquals(filled(0, 1), read(queue, 1, 1));
            assertArrayEquals(filled(6, 1), read(queue, 2, 1));
        }
    }
}

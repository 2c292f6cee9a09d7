package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.OutOfRangeException;
import org.lunarsan.device.UnalignedException;

/**
 * The contract of {@link AsyncDevice}, as tests, together with that of {@link DeviceContract}.
 *
 * <p>JUnit creates an object for each test; the tests start threads of their own.
 */
public abstract class AsyncDeviceContract extends DeviceContract {
    /** Blocks of a long transfer that is abandoned: more than one command of most devices. */
    private static final int ABANDONED_BLOCKS_MAX = 1024;

    private static final int ABANDONED_ROUNDS = 20;

    /** For subclasses. */
    protected AsyncDeviceContract() {}

    @Override
    protected abstract AsyncDevice make(int blockSize, long blockCount) throws Exception;

    private AsyncDevice async() {
        return (AsyncDevice) device;
    }

    private static void assertFails(
            Class<? extends DeviceException> kind, CompletableFuture<Void> future) {
        CompletionException failure = assertThrows(CompletionException.class, future::join);
        assertInstanceOf(kind, failure.getCause());
    }

    /** Goal: refusals are reported by the future, never by the call. */
    @Test
    void refusesByTheFuture() throws Exception {
        long end = device.blockCount();
        ByteBuffer block = ByteBuffer.allocate(device.blockSize());
        assertFails(OutOfRangeException.class, async().readAsync(end, block));
        assertFails(OutOfRangeException.class, async().writeAsync(-1, block));
        assertFails(OutOfRangeException.class, async().unmapAsync(end, 1));
        assertFails(UnalignedException.class, async().readAsync(0, ByteBuffer.allocate(1)));
        assertEquals(0, block.position());
        Device closed = device;
        closed.close();
        assertFails(DeviceClosedException.class, async().readAsync(0, block));
        assertFails(DeviceClosedException.class, async().writeAsync(0, block));
        assertFails(DeviceClosedException.class, async().flushAsync());
        assertFails(DeviceClosedException.class, async().unmapAsync(0, 1));
    }

    /** Goal: null, a programming error, is refused by the call itself: no future hides it. */
    @Test
    void refusesNullByTheCall() {
        Class<NullPointerException> missing = NullPointerException.class;
        assertThrows(missing, () -> async().readAsync(0, null));
        assertThrows(missing, () -> async().writeAsync(0, null));
    }

    /**
     * Goal: a buffer that cannot be used fails only its future: with an unchecked exception or a
     * {@link DeviceException}, as in {@link BufferContract}.
     */
    @Test
    @Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void aClosedBufferFailsItsFutureOnly() throws Exception {
        ForeignMemory memory = ForeignMemory.shared();
        ByteBuffer closed = memory.allocate(2 * device.blockSize());
        memory.close();
        for (int step = 0; step < 100; step++) {
            List<CompletableFuture<Void>> good = new ArrayList<>();
            List<CompletableFuture<Void>> bad = new ArrayList<>();
            for (int block = 0; block < 16; block += 4) {
                ByteBuffer usable = ByteBuffer.wrap(filled(step + block, 2));
                bad.add(async().writeAsync(block, closed.duplicate()));
                good.add(async().writeAsync(block + 2, usable));
                bad.add(async().readAsync(block, closed.duplicate()));
            }
            for (CompletableFuture<Void> future : good) {
                assertNull(future.join());
            }
            bad.forEach(future -> assertMistake("a closed buffer", () -> joinAsCall(future)));
            for (int block = 0; block < 16; block += 4) {
                assertHolds(block + 2, filled(step + block, 2));
            }
        }
        device.flush();
    }

    /** Throws the exception that the blocking call would throw. */
    private static void joinAsCall(CompletableFuture<Void> future) throws DeviceException {
        try {
            future.join();
        } catch (CompletionException failure) {
            switch (failure.getCause()) {
                case DeviceException refusal -> throw refusal;
                case RuntimeException refusal -> throw refusal;
                case null, default -> throw new AssertionError(failure);
            }
        }
    }

    /** Goal: a future completes with null, and the position of the buffer then equals its limit. */
    @Test
    void completesWithTheBufferMoved() {
        ByteBuffer block = ByteBuffer.wrap(filled(3, 2));
        assertNull(async().writeAsync(4, block).join());
        assertEquals(block.limit(), block.position());
        ByteBuffer into = ByteBuffer.allocateDirect(2 * device.blockSize());
        assertNull(async().readAsync(4, into).join());
        assertEquals(into.limit(), into.position());
        byte[] found = new byte[into.limit()];
        into.flip().get(found);
        assertArrayEquals(filled(3, 2), found);
        assertNull(async().flushAsync().join());
        assertNull(async().unmapAsync(4, 1).join());
        assertNull(async().readAsync(device.blockCount(), ByteBuffer.allocate(0)).join());
    }

    /**
     * Runs a step with each way in which a caller completes a future itself, and with buffers of
     * several lengths and kinds.
     */
    private void withEachExternalCompletion(CompletionStep step) {
        int most = (int) Math.min(device.blockCount() - 1, ABANDONED_BLOCKS_MAX);
        Seed.run(random -> {
            for (int round = 0; round < ABANDONED_ROUNDS; round++) {
                for (ExternalCompletion completion : ExternalCompletion.values()) {
                    int blocks = round % 2 == 0 ? most : 1 + random.nextInt(8);
                    int bytes = blocks * device.blockSize();
                    ByteBuffer buffer = round % 4 < 2
                            ? ByteBuffer.allocateDirect(bytes) : ByteBuffer.allocate(bytes);
                    // From before the transfer begins to after it has ended.
                    step.run(completion, buffer, random.nextInt(4) * random.nextInt(50_000));
                }
            }
        });
    }

    /** A step with one such completion. */
    private interface CompletionStep {
        void run(ExternalCompletion completion, ByteBuffer buffer, int nanos) throws Exception;
    }

    private static void spin(int nanos) {
        long begin = System.nanoTime();
        while (System.nanoTime() - begin < nanos) {
            Thread.onSpinWait();
        }
    }

    private static void fill(ByteBuffer buffer, int value) {
        for (int at = 0; at < buffer.limit(); at++) {
            buffer.put(at, (byte) value);
        }
    }

    /**
     * Fault: data that a caller put into its buffer after orTimeout or cancel was written to the
     * disk; and a write that was abandoned could end after a later one to the same block.
     *
     * <p>Goal: each block is as before, or has the data of the abandoned write, and a later write
     * wins. The later write waits for the first one, so that both are over when it returns.
     */
    @Test
    @Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void anAbandonedWriteSendsNothingElse() {
        List<Integer> positions = new ArrayList<>();
        withEachExternalCompletion((completion, buffer, nanos) -> {
            int blocks = buffer.remaining() / device.blockSize();
            device.write(1, filled(1, blocks));
            fill(buffer, 2);
            CompletableFuture<Void> write = async().writeAsync(1, buffer);
            spin(nanos);
            positions.add(completion.apply(write) ? buffer.position() : 0);
            fill(buffer, 0x66);
            device.write(blocks, filled(3, 1));
            byte[] found = read(1, blocks);
            int last = found.length - device.blockSize();
            for (int at = 0; at < last; at += device.blockSize()) {
                byte value = found[at];
                assertTrue(value == 1 || value == 2,
                        () -> completion + " let the disk get " + value);
            }
            for (int at = 0; at < found.length; at++) {
                int begin = at - at % device.blockSize();
                assertEquals(at < last ? found[begin] : 3, found[at], completion + ", byte " + at);
            }
        });
        positions.forEach(position -> assertEquals(0, position));
    }

    /**
     * Fault: data of a read arrived in its buffer after orTimeout or cancel.
     *
     * <p>Goal: data that the caller then puts into the buffer is not overwritten.
     */
    @Test
    @Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void anAbandonedReadFillsNothing() throws Exception {
        device.write(0, filled(0x55, (int) device.blockCount()));
        List<ByteBuffer> buffers = new ArrayList<>();
        List<Integer> positions = new ArrayList<>();
        withEachExternalCompletion((completion, buffer, nanos) -> {
            CompletableFuture<Void> read = async().readAsync(1, buffer);
            spin(nanos);
            positions.add(completion.apply(read) ? buffer.position() : 0);
            fill(buffer, 0x11);
            buffers.add(buffer);
        });
        // Closing ends pending transfers.
        device.close();
        for (ByteBuffer buffer : buffers) {
            byte[] expected = new byte[buffer.limit()];
            Arrays.fill(expected, (byte) 0x11);
            assertEquals(ByteBuffer.wrap(expected), buffer.clear());
        }
        positions.forEach(position -> assertEquals(0, position));
    }

    /** Goal: many concurrent requests all do their work. */
    @Test
    void doesManyAtOnce() {
        Seed.run(random -> {
            int blocks = (int) Math.min(device.blockCount(), 1000);
            byte[] data = bytes(random, blocks);
            int size = device.blockSize();
            List<CompletableFuture<Void>> futures = new ArrayList<>();
            for (int block = 0; block < blocks; block++) {
                futures.add(async().writeAsync(block, ByteBuffer.wrap(data, block * size, size)));
            }
            CompletableFuture.allOf(futures.toArray(CompletableFuture[]::new)).join();
            byte[] found = new byte[data.length];
            futures.clear();
            for (int block = 0; block < blocks; block++) {
                futures.add(async().readAsync(block, ByteBuffer.wrap(found, block * size, size)));
            }
            CompletableFuture.allOf(futures.toArray(CompletableFuture[]::new)).join();
            assertArrayEquals(data, found);
        });
    }

    /** Goal: actions that depend on a future may use the device again. */
    @Test
    void requestsMayFollowFromFutures() {
        CompletableFuture<Void> chain = CompletableFuture.completedFuture(null);
        for (int step = 1; step <= 50; step++) {
            ByteBuffer block = ByteBuffer.wrap(filled(step, 1));
            chain = chain.thenCompose(before -> async().writeAsync(7, block));
        }
        ByteBuffer found = ByteBuffer.allocate(device.blockSize());
        chain.thenCompose(before -> async().readAsync(7, found)).join();
        assertEquals(50, found.get(0));
    }

    /** Goal: closing completes every future, with or without success. */
    @Test
    void closingCompletesAll() throws Exception {
        List<CompletableFuture<Void>> futures = new ArrayList<>();
        for (int block = 0; block < 64; block++) {
            futures.add(async().writeAsync(block, ByteBuffer.wrap(filled(1, 1))));
        }
        device.close();
        for (CompletableFuture<Void> future : futures) {
            Throwable failure = future.handle((done, thrown) -> thrown).join();
            boolean closed = failure instanceof DeviceClosedException
                    || failure instanceof CompletionException wrapped
                            && wrapped.getCause() instanceof DeviceClosedException;
            assertTrue(failure == null || closed, () -> "not " + failure);
        }
    }
}

package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
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
 * The contract of {@link AsyncDevice}, as tests, with all those of {@link DeviceContract}.
 *
 * <p>JUnit makes an object for each test; the tests start threads of their own.
 */
public abstract class AsyncDeviceContract extends DeviceContract {
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

    /** Goal: refusals come by the future, never by the call. */
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

    /** Goal: null, an error of the program, is refused by the call itself: no future hides it. */
    @Test
    void refusesNullByTheCall() {
        Class<NullPointerException> missing = NullPointerException.class;
        assertThrows(missing, () -> async().readAsync(0, null));
        assertThrows(missing, () -> async().writeAsync(0, null));
    }

    /**
     * Goal: a buffer that cannot be used fails its future, and nothing else: with an unchecked
     * exception or a {@link DeviceException}, as {@link BufferContract} says.
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

    /** Throws what the call without a future would throw. */
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

    /** Goal: a future completes with null, and its buffer's position is its limit then. */
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

    /** Goal: many requests under way at once all do what they should. */
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

    /** Goal: what hangs on a future may use the device again. */
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

    /** Goal: closing completes every future, one way or the other. */
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

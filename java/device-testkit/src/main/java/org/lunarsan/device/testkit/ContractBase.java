package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.function.Executable;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/** The device under test, and helpers shared by the tests of the contract. */
abstract class ContractBase {
    /** Open during each test. */
    protected Device device;

    /**
     * Creates a device of zeroes.
     *
     * @param blockSize bytes of a block
     * @param blockCount number of blocks; a device that cannot have exactly this number may have
     *        more
     * @return closed; the contract opens and closes it
     * @throws Exception when it cannot be created
     */
    protected abstract Device make(int blockSize, long blockCount) throws Exception;

    /**
     * Closes a device and opens its medium again, by another object if possible.
     *
     * @param used open, and flushed
     * @return open
     * @throws Exception when that fails
     */
    protected Device reopen(Device used) throws Exception {
        used.close();
        used.open();
        return used;
    }

    /**
     * The block size that most tests use.
     *
     * @return bytes
     */
    protected int blockSize() {
        return 512;
    }

    /**
     * The block sizes that the device can have.
     *
     * @return bytes of each
     */
    protected List<Integer> blockSizes() {
        return List.of(512, 1024, 2048, 4096);
    }

    /**
     * Number of blocks requested of the device.
     *
     * @return the count, at least 64
     */
    protected long blockCount() {
        return 2048;
    }

    /**
     * Number of random operations compared with the model; fewer for slow devices.
     *
     * @return the count
     */
    protected int operations() {
        return 4000;
    }

    /**
     * Called after a device was closed at the end of a test: asserts that it left nothing behind.
     *
     * @throws Exception as any test may
     */
    protected void assertNothingLeft() throws Exception {}

    @BeforeEach
    void openDevice() throws Exception {
        device = make(blockSize(), blockCount());
        device.open();
    }

    @AfterEach
    void closeDevice() throws Exception {
        device.close();
        assertNothingLeft();
    }

    byte[] bytes(Random random, int blocks) {
        byte[] bytes = new byte[blocks * device.blockSize()];
        random.nextBytes(bytes);
        return bytes;
    }

    byte[] filled(int value, int blocks) {
        byte[] bytes = new byte[blocks * device.blockSize()];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    byte[] read(long address, int blocks) throws DeviceException {
        // The comparison detects bytes that the device does not fill.
        byte[] bytes = filled(0x5A, blocks);
        device.read(address, bytes);
        return bytes;
    }

    void assertHolds(long address, byte[] expected) throws DeviceException {
        byte[] found = read(address, expected.length / device.blockSize());
        assertArrayEquals(expected, found, () -> "blocks from " + address);
    }

    /** Checks for a refusal of the right kind that names device, operation and first block. */
    void assertRefused(
            Class<? extends DeviceException> kind,
            Operation operation,
            long address,
            Executable call) {
        DeviceException refusal = assertThrows(kind, call);
        assertEquals(operation, refusal.operation());
        assertEquals(device.name(), refusal.device());
        assertEquals(address, refusal.address(), "the address in " + refusal.getMessage());
    }

    /** The work of a thread of a test. */
    interface Step {
        void run(int thread) throws Exception;
    }

    /** Runs a step in several virtual threads at once and waits for all. */
    static void together(int threads, Step step) throws Exception {
        List<Future<?>> running = new ArrayList<>();
        try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
            for (int index = 0; index < threads; index++) {
                int thread = index;
                running.add(executor.submit(() -> {
                    step.run(thread);
                    return null;
                }));
            }
        }
        for (Future<?> future : running) {
            try {
                future.get();
            } catch (ExecutionException failure) {
                throw new AssertionError(failure.getCause().toString(), failure.getCause());
            }
        }
    }

    static ByteBuffer copyOf(byte[] bytes, ByteBuffer into) {
        return into.put(bytes).flip();
    }
}

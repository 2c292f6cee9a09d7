package org.lunarsan.initiator.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.PoisonedException;

/**
 * Threads that write, read and flush separate parts of a device and compare each with a model.
 * Threads: each part is for one thread.
 */
final class Workload {
    private static final int BLOCKS_MAX = 96;
    /** More than a piece of a long transfer, so that there are several. */
    private static final int MANY_BLOCKS_MAX = 1500;

    private final Device device;
    private final long first;
    private final int blocks;
    private final int size;
    private final byte[] model;
    private final Random random;

    Workload(Device device, long first, int blocks, long seed) {
        this.device = device;
        this.first = first;
        this.blocks = blocks;
        size = device.blockSize();
        model = new byte[blocks * size];
        random = new Random(seed);
    }

    /** Runs several parts concurrently, until {@code goesOn} is false. */
    static void run(Device device, int threads, int blocks, long seed, BooleanSupplier goesOn)
            throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> running = new ArrayList<>();
        for (int index = 0; index < threads; index++) {
            Workload part = new Workload(device, (long) index * blocks, blocks, seed + index);
            running.add(Thread.ofVirtual().start(() -> {
                try {
                    part.all(() -> goesOn.getAsBoolean() && failure.get() == null);
                } catch (Throwable thrown) {
                    failure.compareAndSet(null, thrown);
                }
            }));
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new AssertionError("seed " + seed + ": " + failure.get(), failure.get());
        }
    }

    /** Runs the whole workload of this part in this thread. */
    void all(BooleanSupplier goesOn) throws DeviceException {
        device.write(first, model);
        while (goesOn.getAsBoolean()) {
            step();
        }
        end();
    }

    private void step() throws DeviceException {
        int most = random.nextInt(8) == 0 ? MANY_BLOCKS_MAX : BLOCKS_MAX;
        int count = 1 + random.nextInt(Math.min(most, blocks));
        int at = random.nextInt(blocks - count + 1);
        byte[] part = Arrays.copyOfRange(model, at * size, (at + count) * size);
        switch (random.nextInt(8)) {
            case 0 -> flush();
            case 1, 2, 3 -> {
                byte[] found = new byte[part.length];
                device.read(first + at, found);
                assertArrayEquals(part, found, () -> "blocks from " + (first + at));
            }
            default -> {
                random.nextBytes(part);
                boolean direct = random.nextBoolean();
                ByteBuffer data = direct ? ByteBuffer.allocateDirect(part.length)
                        : ByteBuffer.allocate(part.length);
                device.write(first + at, data.put(part).flip());
                System.arraycopy(part, 0, model, at * size, part.length);
            }
        }
    }

    /** Flushes; rewrites the part when the device reports a lost cache. */
    private void flush() throws DeviceException {
        while (true) {
            try {
                device.flush();
                return;
            } catch (PoisonedException lost) {
                device.write(first, model);
            }
        }
    }

    private void end() throws DeviceException {
        flush();
        byte[] found = new byte[model.length];
        device.read(first, found);
        assertArrayEquals(model, found, () -> "blocks from " + first);
    }
}

package org.lunarsan.bench.contestant;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.DeviceException;

/**
 * A closed loop of random reads: {@code depth} reads are pending, and the next begins when one
 * ends. Buffers are direct, one for each pending read.
 *
 * <p>Threads: created and run by one; its requests end in others.
 */
final class Load {
    private static final double NANOS = 1e9;

    /** Arguments of the command {@code load}. */
    record Arguments(int depth, long millis, long seed, long range, int blocks) {
    }

    private final AsyncDevice device;
    private final Arguments arguments;
    private final long begun = System.nanoTime();
    private final List<Slot> slots = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final CountDownLatch ended;

    /** A sequence of requests, one after the other. */
    private final class Slot {
        private final ByteBuffer buffer =
                ByteBuffer.allocateDirect(arguments.blocks() * device.blockSize());
        private final long seed;
        private long count;

        Slot(long seed) {
            this.seed = seed;
        }

        private long address() {
            return OperationData.address(seed, count, arguments.blocks(), arguments.range());
        }

        private boolean isOver() {
            return failure.get() != null
                    || System.nanoTime() - begun >= arguments.millis() * 1_000_000;
        }

        private void begin() {
            buffer.clear();
            device.readAsync(address(), buffer).whenComplete(this::next);
        }

        private void next(Void nothing, Throwable failed) {
            if (failed != null) {
                failure.compareAndSet(null, failed);
            }
            count++;
            if (isOver()) {
                ended.countDown();
            } else {
                begin();
            }
        }

        private void loop() {
            try {
                while (!isOver()) {
                    buffer.clear();
                    device.read(address(), buffer);
                    count++;
                }
            } catch (DeviceException failed) {
                failure.compareAndSet(null, failed);
            } finally {
                ended.countDown();
            }
        }
    }

    private Load(AsyncDevice device, Arguments arguments) {
        this.device = device;
        this.arguments = arguments;
        ended = new CountDownLatch(arguments.depth());
        for (int number = 0; number < arguments.depth(); number++) {
            slots.add(new Slot(OperationData.mixed(arguments.seed(), number)));
        }
    }

    /** Returns requests per second, by futures or by a virtual thread for each pending read. */
    static double run(AsyncDevice device, boolean byFutures, Arguments arguments) throws Exception {
        Load load = new Load(device, arguments);
        for (Slot slot : load.slots) {
            if (byFutures) {
                slot.begin();
            } else {
                Thread.ofVirtual().start(slot::loop);
            }
        }
        load.ended.await();
        double seconds = (System.nanoTime() - load.begun) / NANOS;
        if (load.failure.get() != null) {
            throw new ExecutionException(load.failure.get());
        }
        return load.slots.stream().mapToLong(slot -> slot.count).sum() / seconds;
    }
}

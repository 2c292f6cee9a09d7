package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;

/** A blocking device whose requests are tasks of an executor. For any thread. */
final class ExecutorAsyncDevice extends ForwardingDevice implements AsyncDevice {
    private final Executor executor;

    ExecutorAsyncDevice(Device inner, Executor executor) {
        super(inner);
        this.executor = executor;
    }

    @Override
    public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
        Objects.requireNonNull(buffer, "buffer");
        return start(() -> read(address, buffer));
    }

    @Override
    public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
        Objects.requireNonNull(buffer, "buffer");
        return start(() -> write(address, buffer));
    }

    @Override
    public CompletableFuture<Void> flushAsync() {
        return start(this::flush);
    }

    @Override
    public CompletableFuture<Void> unmapAsync(long address, long blocks) {
        return start(() -> unmap(address, blocks));
    }

    /** What a request does. */
    private interface Work {
        void run() throws DeviceException;
    }

    private CompletableFuture<Void> start(Work work) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        try {
            executor.execute(() -> {
                try {
                    work.run();
                    done.complete(null);
                } catch (Throwable failure) {
                    done.completeExceptionally(failure);
                }
            });
        } catch (RejectedExecutionException failure) {
            done.completeExceptionally(failure);
        }
        return done;
    }
}

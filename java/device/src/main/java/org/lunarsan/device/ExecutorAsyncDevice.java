package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;

/** A blocking device whose requests are tasks of an executor. Thread-safe. */
final class ExecutorAsyncDevice extends ForwardingDevice implements AsyncDevice {
    private final Executor executor;
    private final AbandonedWrites abandoned = new AbandonedWrites();

    ExecutorAsyncDevice(Device inner, Executor executor) {
        super(inner);
        this.executor = executor;
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        abandoned.await(address, blocks(buffer));
        super.write(address, buffer);
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        abandoned.await(address, blocks);
        super.unmap(address, blocks);
    }

    @Override
    public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
        LentTransfer transfer = new LentTransfer(Objects.requireNonNull(buffer, "buffer"));
        start(() -> transfer.read(into -> read(address, into)), transfer::end);
        return transfer;
    }

    @Override
    public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
        Write write = new Write(address, Objects.requireNonNull(buffer, "buffer"));
        start(write::run, write::end);
        return write;
    }

    @Override
    public CompletableFuture<Void> flushAsync() {
        return start(this::flush);
    }

    @Override
    public CompletableFuture<Void> unmapAsync(long address, long blocks) {
        return start(() -> unmap(address, blocks));
    }

    /**
     * Returns the number of blocks of a buffer; 0 for a device that was never opened, which refuses
     * it.
     */
    private long blocks(ByteBuffer buffer) {
        try {
            return buffer.remaining() / blockSize();
        } catch (IllegalStateException exception) {
            return 0;
        }
    }

    /** A write for which later ones wait if it is abandoned while pending. */
    private final class Write extends LentTransfer {
        private final long address;
        private final AbandonedWrites.Range range;
        private final long blocks;
        /** Guarded by the lock of the future. */
        private boolean began;

        Write(long address, ByteBuffer caller) {
            super(caller);
            this.address = address;
            blocks = blocks(caller);
            range = new AbandonedWrites.Range(address, blocks);
        }

        void run() throws DeviceException {
            abandoned.await(address, blocks);
            write(from -> inner().write(address, from));
        }

        @Override
        void began() {
            began = true;
        }

        @Override
        protected void detach() {
            if (began) {
                abandoned.add(range);
            }
        }

        @Override
        protected void ended() {
            abandoned.remove(range);
        }
    }

    /** The work of a request. */
    private interface Work {
        void run() throws DeviceException;
    }

    private CompletableFuture<Void> start(Work work) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        start(work, failure -> {
            if (failure == null) {
                done.complete(null);
            } else {
                done.completeExceptionally(failure);
            }
        });
        return done;
    }

    /** Starts work; {@code ended} receives its failure, or null. */
    private void start(Work work, Consumer<Throwable> ended) {
        try {
            executor.execute(() -> {
                Throwable failure = null;
                try {
                    work.run();
                } catch (Throwable thrown) {
                    failure = thrown;
                }
                ended.accept(failure);
            });
        } catch (RejectedExecutionException failure) {
            ended.accept(failure);
        }
    }
}

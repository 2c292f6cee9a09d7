package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Function;

/**
 * The future of a transfer by another device. A blocking call cannot release a buffer early, so it
 * gets a buffer of the pool; the caller's buffer is used only while data is copied between them. An
 * {@link AsyncDevice} gets the caller's buffer itself, and releases it on request.
 *
 * <p>A transfer that is abandoned before it begins is skipped.
 *
 * <p>Threads: the worker that does the transfer, and any that completes the future.
 */
class LentTransfer extends TransferFuture {
    /** Shared by all such transfers; off-heap, so that the JDK need not copy the data. */
    private static final BufferPool POOL = new BufferPool();

    /** A separate view: the caller may change position and limit once it has the buffer back. */
    private final ByteBuffer view;
    /** The transfer of the inner device with the caller's buffer; null: none. */
    private CompletableFuture<Void> inner;

    LentTransfer(ByteBuffer caller) {
        super(caller);
        view = caller.duplicate();
    }

    /** A blocking call, with data from position to limit. */
    interface Call {
        void run(ByteBuffer data) throws DeviceException;
    }

    /** Reads by a blocking call. */
    final void read(Call call) throws DeviceException {
        if (view.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        if (!isLent()) {
            return;
        }
        ByteBuffer data = POOL.take(view.remaining());
        try {
            call.run(data.duplicate());
            fill(data);
        } finally {
            POOL.give(data);
        }
    }

    /** Writes by a blocking call. */
    final void write(Call call) throws DeviceException {
        ByteBuffer data = POOL.take(view.remaining());
        try {
            if (copyTo(data)) {
                call.run(data.flip());
            }
        } finally {
            POOL.give(data);
        }
    }

    /** Lends the caller's buffer to an {@link AsyncDevice}, and waits for it. */
    final void lend(Function<ByteBuffer, CompletableFuture<Void>> begin) throws DeviceException {
        if (whileLent(() -> inner = begin.apply(view.duplicate()))) {
            await(inner);
        }
    }

    /** Waits like a blocking call; an interrupt is kept, since the device still uses the buffer. */
    static void await(CompletableFuture<Void> future) throws DeviceException {
        try {
            future.join();
        } catch (CompletionException failure) {
            switch (failure.getCause()) {
                case DeviceException known -> throw known;
                case RuntimeException defect -> throw defect;
                case null, default -> throw failure;
            }
        }
    }

    /** Copies the caller's data; false when the transfer was abandoned. */
    final boolean copyTo(ByteBuffer data) {
        return whileLent(() -> {
            data.put(view.duplicate());
            began();
        });
    }

    /** Copies the data of a read to the caller, unless the transfer was abandoned. */
    final void fill(ByteBuffer data) {
        whileLent(() -> view.duplicate().put(data));
    }

    /** Called before the transfer is begun with the caller's data, with the lock held. */
    void began() {}

    @Override
    protected void detach() {
        if (inner != null) {
            takeBack(inner);
        }
    }
}

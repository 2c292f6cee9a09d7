package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Supplier;

/**
 * The future of a transfer. However it is completed, by the transfer, by a time limit
 * ({@link CompletableFuture#orTimeout}) or by whoever has it, the caller's buffer is the caller's
 * again before anybody sees it complete.
 *
 * <p>Threads: any.
 */
abstract class TransferFuture extends CompletableFuture<Void> {
    private final Object lock = new Object();
    private final ByteBuffer caller;
    private final int limit;
    private boolean isBack;

    /** Of a transfer from or to what remains of this buffer. */
    TransferFuture(ByteBuffer caller) {
        this.caller = caller;
        limit = caller.limit();
    }

    /** From when this returns on, nothing uses the buffer. Called once. */
    abstract void detach();

    /** From when this returns on, nothing uses the caller's buffer. */
    final void takeBack() {
        synchronized (lock) {
            if (!isBack) {
                isBack = true;
                detach();
            }
        }
    }

    /** The transfer has ended, whether or not its buffer was taken back. */
    void ended() {
        // Nothing is kept.
    }

    /** The transfer has ended; null: well. */
    final void end(Throwable failure) {
        synchronized (lock) {
            if (!isBack && failure == null) {
                caller.limit(limit).position(limit);
            }
            isBack = true;
        }
        ended();
        if (failure == null) {
            super.complete(null);
        } else {
            super.completeExceptionally(failure);
        }
    }

    @Override
    public boolean complete(Void nothing) {
        takeBack();
        return super.complete(nothing);
    }

    @Override
    public boolean completeExceptionally(Throwable why) {
        takeBack();
        return super.completeExceptionally(why);
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
        takeBack();
        return super.cancel(mayInterrupt);
    }

    @Override
    public CompletableFuture<Void> completeAsync(Supplier<? extends Void> by, Executor executor) {
        takeBack();
        return super.completeAsync(by, executor);
    }

    @Override
    public void obtrudeValue(Void nothing) {
        takeBack();
        super.obtrudeValue(nothing);
    }

    @Override
    public void obtrudeException(Throwable why) {
        takeBack();
        super.obtrudeException(why);
    }
}

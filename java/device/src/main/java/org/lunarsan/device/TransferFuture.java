package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/**
 * The future of a read or write of an {@link AsyncDevice}. Any completion, by the device, a time
 * limit ({@link CompletableFuture#orTimeout}) or the caller, takes the buffer back from the device
 * first: once the future is complete, the device neither reads nor writes the buffer.
 *
 * <p>A device extends it with its way to release the buffer, and completes it only by
 * {@link #end(Throwable)}. Dependent futures are ordinary ones.
 *
 * <p>Threads: any.
 */
public abstract class TransferFuture extends CompletableFuture<Void> {
    /**
     * A lock and not a monitor: a virtual thread may wait while holding it, and must not pin its
     * carrier.
     */
    private final ReentrantLock lock = new ReentrantLock();
    private final ByteBuffer caller;
    private final int limit;
    private boolean isBack;
    /** Set when other code completes the future: the device's result does not count any more. */
    private boolean isAbandoned;
    private boolean isEnded;
    /** The failure of the transfer; null: success. */
    private Throwable failure;

    /**
     * Creates the future of a transfer from or to the remaining bytes of a buffer.
     *
     * @param caller the buffer as passed by the caller; its position becomes its limit on success
     */
    protected TransferFuture(ByteBuffer caller) {
        this.caller = Objects.requireNonNull(caller, "caller");
        limit = caller.limit();
    }

    /**
     * Releases the caller's buffer: nothing uses it after this call has returned. It must be quick
     * in any state of the device, because it runs in the thread that completes the future, such as
     * the timer thread of the JDK. Called at most once, with the lock of this future held, and
     * never after {@link #end}.
     */
    protected abstract void detach();

    /** Takes the buffer back from the device, without completing the future. */
    public final void takeBack() {
        lock.lock();
        try {
            if (!isBack) {
                isBack = true;
                detach();
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Takes the buffer back for other code that completes the future. The first completion
     * determines the result: otherwise a read that was abandoned could succeed, with nothing in its
     * buffer.
     *
     * @return false when the transfer has ended before, and the future with it
     */
    private boolean abandon() {
        lock.lock();
        try {
            if (!isEnded) {
                takeBack();
                isAbandoned = true;
                return true;
            }
        } finally {
            lock.unlock();
        }
        finish();
        return false;
    }

    /** Completes the future with the result of the transfer. */
    private void finish() {
        if (failure == null) {
            super.complete(null);
        } else {
            super.completeExceptionally(failure);
        }
    }

    /**
     * Takes the buffer of any future of an {@link AsyncDevice} back. A future that is no
     * {@code TransferFuture} is cancelled for it.
     *
     * @param future of a read or write
     */
    public static void takeBack(CompletableFuture<Void> future) {
        if (future instanceof TransferFuture transfer) {
            transfer.takeBack();
        } else {
            future.cancel(false);
        }
    }

    /**
     * Runs code that uses the caller's buffer, unless the buffer was taken back. Taking the buffer
     * back waits until it has returned, so it must be quick in any state of the device.
     *
     * @param use the code
     * @return false when the buffer was taken back, and nothing was done
     */
    protected final boolean whileLent(Runnable use) {
        lock.lock();
        try {
            if (!isBack) {
                use.run();
                return true;
            }
            return false;
        } finally {
            lock.unlock();
        }
    }

    /**
     * True while the device has the buffer, which it may lose at any time.
     *
     * @return false when the buffer was taken back, or the transfer has ended
     */
    protected final boolean isLent() {
        lock.lock();
        try {
            return !isBack;
        } finally {
            lock.unlock();
        }
    }

    /** Called when the transfer has ended, whether or not its buffer was taken back before. */
    protected void ended() {
        // Nothing to do by default.
    }

    /**
     * Completes the future for the device: the transfer has ended, and does not use the buffer any
     * more. No effect on the future when other code completes it.
     *
     * @param why the failure; null when all was transferred
     */
    protected final void end(Throwable why) {
        boolean others;
        lock.lock();
        try {
            if (!isBack && why == null) {
                caller.limit(limit).position(limit);
            }
            isBack = true;
            others = isAbandoned;
            if (!isEnded) {
                failure = why;
                isEnded = true;
            }
        } finally {
            lock.unlock();
        }
        ended();
        if (!others) {
            finish();
        }
    }

    @Override
    public boolean complete(Void nothing) {
        return abandon() && super.complete(nothing);
    }

    @Override
    public boolean completeExceptionally(Throwable why) {
        return abandon() && super.completeExceptionally(why);
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
        abandon();
        return super.cancel(mayInterrupt);
    }

    @Override
    public CompletableFuture<Void> completeAsync(Supplier<? extends Void> by, Executor executor) {
        Objects.requireNonNull(by, "by");
        Objects.requireNonNull(executor, "executor");
        if (!abandon()) {
            return this;
        }
        try {
            return super.completeAsync(by, executor);
        } catch (RuntimeException refused) {
            // No other code completes the future any more.
            super.completeExceptionally(refused);
            throw refused;
        }
    }

    @Override
    public void obtrudeValue(Void nothing) {
        abandon();
        super.obtrudeValue(nothing);
    }

    @Override
    public void obtrudeException(Throwable why) {
        abandon();
        super.obtrudeException(why);
    }
}

package org.lunarsan.device.testkit;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Ways in which code other than the device completes a future. */
enum ExternalCompletion {
    OR_TIMEOUT, COMPLETE_ON_TIMEOUT, CANCEL, COMPLETE, FAIL, COMPLETE_ASYNC, OBTRUDE;

    /** Completes a future; true if the device had certainly not completed it before. */
    boolean apply(CompletableFuture<Void> future) {
        switch (this) {
            case OR_TIMEOUT -> {
                Throwable thrown = future.orTimeout(1, TimeUnit.MICROSECONDS)
                        .handle((done, failure) -> failure).join();
                return thrown instanceof TimeoutException;
            }
            case COMPLETE_ON_TIMEOUT ->
                future.completeOnTimeout(null, 1, TimeUnit.MICROSECONDS).join();
            case CANCEL -> {
                return future.cancel(true);
            }
            case COMPLETE -> {
                return future.complete(null);
            }
            case FAIL -> {
                return future.completeExceptionally(new TimeoutException());
            }
            case COMPLETE_ASYNC -> future.completeAsync(() -> null, Runnable::run).join();
            case OBTRUDE -> future.obtrudeException(new TimeoutException());
            default -> throw new AssertionError(this);
        }
        return false;
    }
}

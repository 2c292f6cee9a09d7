package org.lunarsan.pool;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.ChangedException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.NoSpaceException;

/**
 * Brings a member up to date that was left out as late: waits until its unanswered calls have
 * ended, then copies to it repeatedly until it is current, in a thread of its own.
 */
final class Recovery {
    /**
     * Pause before another attempt, doubled each time up to the maximum: a member may fail at once.
     */
    private static final long WAIT_MILLIS_FIRST = 1000;

    private static final long WAIT_MILLIS_MAX = 60_000;

    private final Mirror mirror;
    private final MirrorMember member;
    private final CompletableFuture<Void> done = new CompletableFuture<>();

    private Recovery(Mirror mirror, MirrorMember member) {
        this.mirror = mirror;
        this.member = member;
    }

    /**
     * Begins a recovery; returns at once.
     *
     * @return completes when the member is current, or when nothing is left to do: the pool is
     *         closed, or another copy to the member has begun
     */
    static CompletableFuture<Void> start(Mirror mirror, MirrorMember member) {
        Recovery recovery = new Recovery(mirror, member);
        Thread.ofVirtual().name("recovery of " + member).start(recovery::run);
        return recovery.done;
    }

    private void run() {
        try {
            long waitMillis = WAIT_MILLIS_FIRST;
            while (!attempt()) {
                if (mirror.membership().awaitClosing(Duration.ofMillis(waitMillis))) {
                    break;
                }
                waitMillis = Math.min(2 * waitMillis, WAIT_MILLIS_MAX);
            }
        } catch (InterruptedException | RuntimeException | Error failure) {
            Log.warn(() -> mirror.membership().name() + ": member " + member
                    + " stays stale, its recovery ended with " + failure);
        } finally {
            done.complete(null);
        }
    }

    /** Attempts a recovery. False: it failed, and another attempt may succeed. */
    private boolean attempt() {
        // Unanswered calls must not reach the member after newer data.
        member.device.awaitPresent();
        if (mirror.membership().isClosing()) {
            return true;
        }
        if (!mirror.beginCopies(List.of(member)).isEmpty()) {
            Throwable failure =
                    Resync.start(mirror, member).handle((current, thrown) -> thrown).join();
            boolean hopeless = failure instanceof MediumException
                    || failure instanceof NoSpaceException
                    || failure instanceof ChangedException;
            if (failure != null && !hopeless) {
                return false;
            }
        }
        return mirror.membership().endRecovery(member);
    }
}

package org.lunarsan.initiator;

import java.time.Duration;
import org.lunarsan.initiator.IscsiException.Kind;

/**
 * Time for which one command waits for sessions, counted from the first loss that it meets.
 *
 * <p>Threads: for one thread.
 */
final class RetryDeadline {
    private final long recovery;
    private boolean begun;
    /** Deadline on the clock of {@link System#nanoTime}, once a wait has begun. */
    private long until;
    /** The first loss. */
    private Failure loss;
    private int losses;
    /** Set when the command may have had an effect. */
    private boolean sent;

    RetryDeadline(Duration recovery) {
        this.recovery = recovery.toNanos();
    }

    /**
     * Records that a session was lost or found lost. Throws the loss when there is no time left.
     */
    void lost(Failure failure, long now) throws Failure {
        losses++;
        sent |= failure.kind() == Kind.SESSION_LOST;
        loss = loss == null ? failure : loss;
        if (!begun) {
            begun = true;
            until = now + recovery;
        }
        if (until - now <= 0) {
            throw over("no login was attempted");
        }
    }

    /** True when a wait has begun. */
    boolean hasBegun() {
        return begun;
    }

    /** Returns the deadline, once a wait has begun. */
    long until() {
        return until;
    }

    /** True when the command may have been executed. */
    boolean wasSent() {
        return sent;
    }

    /**
     * Returns the failure for a deadline that has passed. {@code tried}: the attempts made
     * meanwhile.
     */
    Failure over(String tried) {
        Failure first = loss == null ? Failure.of(Kind.SESSION_LOST, "lost") : loss;
        Failure failure = first.as(sent ? Kind.SESSION_LOST : Kind.NOT_SENT);
        if (recovery == 0) {
            return failure;
        }
        String again = losses <= 1 ? "" : " (lost " + losses + " times)";
        String seconds = Duration.ofNanos(recovery).toMillis() / 1000.0 + " s";
        String what = first.getMessage() + again + ", and was not re-established within "
                + seconds.replace(".0 s", " s") + ": " + tried;
        return failure.withMessage(what)
                .hint("check that the server is running, or set a longer recovery time to wait"
                        + " longer");
    }
}

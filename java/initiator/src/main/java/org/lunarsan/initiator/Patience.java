package org.lunarsan.initiator;

import java.time.Duration;
import org.lunarsan.initiator.IscsiException.Kind;

/**
 * The patience of one command: from the first loss it meets, it waits so long for sessions.
 *
 * <p>Threads: for one thread.
 */
final class Patience {
    private final long recovery;
    private boolean begun;
    /** On the clock of {@link System#nanoTime}, once it has begun. */
    private long until;
    /** The first loss. */
    private Failure loss;
    private int losses;
    /** The command may have had an effect. */
    private boolean sent;

    Patience(Duration recovery) {
        this.recovery = recovery.toNanos();
    }

    /** A session was lost, or is found lost. Throws the loss when there is no time left. */
    void lost(Failure failure, long now) throws Failure {
        losses++;
        sent |= failure.kind() == Kind.SESSION_LOST;
        loss = loss == null ? failure : loss;
        if (!begun) {
            begun = true;
            until = now + recovery;
        }
        if (until - now <= 0) {
            throw over("no login was tried");
        }
    }

    /** Whether a wait has begun. */
    boolean hasBegun() {
        return begun;
    }

    /** When it ends, once it has begun. */
    long until() {
        return until;
    }

    /** A command of this patience may have been executed. */
    boolean wasSent() {
        return sent;
    }

    /** The time has passed. {@code tried}: what was done meanwhile. */
    Failure over(String tried) {
        Failure first = loss == null ? Failure.of(Kind.SESSION_LOST, "lost") : loss;
        Failure failure = first.as(sent ? Kind.SESSION_LOST : Kind.NOT_SENT);
        if (recovery == 0) {
            return failure;
        }
        String again = losses <= 1 ? "" : " (lost " + losses + " times)";
        String seconds = Duration.ofNanos(recovery).toMillis() / 1000.0 + " s";
        String what = first.getMessage() + again + ", and was not back after "
                + seconds.replace(".0 s", " s") + ": " + tried;
        return failure.saying(what)
                .hint("is the server running? a longer recovery time waits for it longer");
    }
}

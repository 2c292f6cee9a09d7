package org.lunarsan.initiator;

import java.time.Duration;

/**
 * Pauses between logins. They double up to a limit, and each is drawn at random between half and
 * the whole of the current pause, so that the initiators of a restarted target do not all log in at
 * once.
 *
 * <p>Threads: for one thread.
 */
final class Backoff {
    /** The first pause, doubled each time. */
    static final Duration PAUSE_MIN = Duration.ofMillis(50);
    /** The longest pause. */
    static final Duration PAUSE_MAX = Duration.ofSeconds(2);

    private long pause = PAUSE_MIN.toNanos();
    private long random;

    /** Starts with the shortest pause. */
    Backoff(long entropy) {
        random = entropy | 1;
    }

    /** Returns the next pause in nanoseconds. */
    long next() {
        // xorshift64: the pauses of two initiators only have to differ.
        random ^= random << 13;
        random ^= random >>> 7;
        random ^= random << 17;
        long half = pause / 2;
        pause = Math.min(2 * pause, PAUSE_MAX.toNanos());
        return half + Long.remainderUnsigned(random, half + 1);
    }
}

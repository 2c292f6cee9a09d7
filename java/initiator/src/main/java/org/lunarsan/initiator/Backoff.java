package org.lunarsan.initiator;

import java.time.Duration;

/**
 * Pauses between logins: they double up to a limit, each spread by chance between a half and the
 * whole, so that the initiators of a target that comes back do not come all at once.
 *
 * <p>Threads: for one thread.
 */
final class Backoff {
    /** The first pause, doubled each time. */
    static final Duration PAUSE_MIN = Duration.ofMillis(50);
    /** The longest. */
    static final Duration PAUSE_MAX = Duration.ofSeconds(2);

    private long pause = PAUSE_MIN.toNanos();
    private long random;

    /** From the shortest pause on. */
    Backoff(long entropy) {
        random = entropy | 1;
    }

    /** The next pause in nanoseconds. */
    long next() {
        // xorshift64: all that is wanted is that two initiators differ.
        random ^= random << 13;
        random ^= random >>> 7;
        random ^= random << 17;
        long half = pause / 2;
        pause = Math.min(2 * pause, PAUSE_MAX.toNanos());
        return half + Long.remainderUnsigned(random, half + 1);
    }
}

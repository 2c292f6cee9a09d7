package org.lunarsan.pool;

import java.time.Duration;

/**
 * Options of a {@link MirroredDevice} for its members. Immutable and thread-safe.
 *
 * @param memberMillisMax time limit in milliseconds for a member after another has answered, and
 *        for the first member of a read before another is tried; 0: no limit. A later member is
 *        left out, and callers continue without it. When its unanswered calls have ended, the
 *        mirror copies all data to it in the background, until it is current again. While no member
 *        answers, the mirror waits as long as its members do. A late member may write from a heap
 *        buffer after the call has returned, and so write data that the caller has put there since;
 *        such data is never read, and is overwritten by the copy before the member is read again
 */
public record MirrorOptions(long memberMillisMax) {
    /** Limits the wait for a member to 2 seconds after another. */
    public static final MirrorOptions DEFAULT = new MirrorOptions(2000);

    /**
     * Checks the options.
     *
     * @throws IllegalArgumentException when the limit is negative
     */
    public MirrorOptions {
        if (memberMillisMax < 0) {
            throw new IllegalArgumentException(
                    "memberMillisMax is at least 0, not " + memberMillisMax);
        }
    }

    /**
     * Returns the options with another limit.
     *
     * @param millis 0: no limit
     * @return the options with it
     */
    public MirrorOptions withMemberMillisMax(long millis) {
        return new MirrorOptions(millis);
    }

    Duration memberWait() {
        return memberMillisMax == 0 ? Parallel.WITHOUT_END : Duration.ofMillis(memberMillisMax);
    }
}

package org.lunarsan.pool;

import java.time.Duration;

/**
 * How a {@link MirroredDevice} deals with its members. A value; for any thread.
 *
 * @param memberMillisMax how long, in milliseconds, a mirror waits for a member when another has
 *     answered, and for the first member that it reads from before it asks another; 0: without end.
 *     A member that is later is left out: the callers go on without it. When the calls that it did
 *     not answer have ended, the mirror copies all data to it, in the background, until it is
 *     current again. While no member answers, the mirror waits as long as its members do. A late
 *     member may write from a heap buffer after the call has returned, and what the caller has
 *     put there since: nobody reads that, it is copied over before the member is read again
 */
public record MirrorOptions(long memberMillisMax) {
    /** Members are waited for at most 2 seconds longer than another. */
    public static final MirrorOptions DEFAULT = new MirrorOptions(2000);

    /**
     * Checks.
     *
     * @throws IllegalArgumentException when the bound is negative
     */
    public MirrorOptions {
        if (memberMillisMax < 0) {
            throw new IllegalArgumentException(
                    "memberMillisMax is at least 0, not " + memberMillisMax);
        }
    }

    /**
     * Another bound for members.
     *
     * @param millis 0: without end
     * @return the options with it
     */
    public MirrorOptions withMemberMillisMax(long millis) {
        return new MirrorOptions(millis);
    }

    Duration memberWait() {
        return memberMillisMax == 0 ? Parallel.WITHOUT_END : Duration.ofMillis(memberMillisMax);
    }
}

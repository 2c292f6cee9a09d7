package org.lunarsan.iscsi.connection;

/**
 * When something is due, on the clock of {@link System#nanoTime}, whose numbers may be negative and
 * wrap: only differences count.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Timers {
    /** Nothing is due. */
    static final long NEVER = Long.MAX_VALUE;

    /** When anything arrived last. */
    long heard;
    boolean isPinged;
    /** When a ping of our own was sent that has no answer. */
    long pinged;
    boolean logsOut;
    long logoutBy;
    boolean drains;
    /** When a logout is sent, though not all is over. */
    long drainBy;

    void clear() {
        isPinged = false;
        logsOut = false;
        drains = false;
    }

    static long left(long now, long deadline) {
        return Math.max(deadline - now, 0);
    }

    /** How long the target may stay silent: until it is pinged, or until it is taken for dead. */
    long silenceLeft(long now, ConnectionLimits limits) {
        if (isPinged) {
            long last = pinged - heard > 0 ? pinged : heard;
            return left(now, last + limits.pingNanos());
        }
        boolean never = limits.pingIntervalNanos() == 0;
        return never ? NEVER : left(now, heard + limits.pingIntervalNanos());
    }
}

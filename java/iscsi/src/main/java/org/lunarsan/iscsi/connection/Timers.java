package org.lunarsan.iscsi.connection;

/**
 * Deadlines on the clock of {@link System#nanoTime}, whose numbers may be negative and wrap: only
 * differences are used.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Timers {
    /** Nothing is due. */
    static final long NEVER = Long.MAX_VALUE;

    /** Time of the last arrival. */
    long lastReceived;
    boolean isPinged;
    /** Time of our last unanswered ping. */
    long pinged;
    boolean logsOut;
    long logoutBy;
    boolean drains;
    /** Time at which a logout is sent even with pending requests. */
    long drainBy;

    void clear() {
        isPinged = false;
        logsOut = false;
        drains = false;
    }

    static long left(long now, long deadline) {
        return Math.max(deadline - now, 0);
    }

    /**
     * Returns the time for which the target may stay silent: until it is pinged, or counts as dead.
     */
    long silenceLeft(long now, ConnectionLimits limits) {
        if (isPinged) {
            long last = pinged - lastReceived > 0 ? pinged : lastReceived;
            return left(now, last + limits.pingNanos());
        }
        boolean never = limits.pingIntervalNanos() == 0;
        return never ? NEVER : left(now, lastReceived + limits.pingIntervalNanos());
    }
}

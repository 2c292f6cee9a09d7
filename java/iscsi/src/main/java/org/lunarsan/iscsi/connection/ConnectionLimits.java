package org.lunarsan.iscsi.connection;

/**
 * Limits of one connection in the initiator role.
 *
 * <p>Threads: immutable.
 *
 * @param pingIntervalNanos idle time after which the target is pinged; 0: never
 * @param pingNanos time after a ping without any answer after which the target counts as dead
 * @param logoutNanos from the Logout Request to its response
 * @param requestsMax pending commands and other requests, including those that wait for the window;
 *        at most {@link #REQUESTS_MAX}
 * @param textBytesMax text gathered over the Text Responses of one exchange
 */
public record ConnectionLimits(long pingIntervalNanos, long pingNanos, long logoutNanos,
        int requestsMax, int textBytesMax) {
    /**
     * The largest number of requests: the number of Initiator Task Tags, less those for the
     * machine.
     */
    public static final int REQUESTS_MAX = 4000;

    private static final long SECOND = 1_000_000_000L;

    /** Five seconds each, 1,024 requests, 1 MiB of text. */
    public static final ConnectionLimits DEFAULT =
            new ConnectionLimits(5 * SECOND, 5 * SECOND, 5 * SECOND, 1024, 1 << 20);

    /**
     * Checks the limits.
     *
     * @throws IllegalArgumentException when they are not valid
     */
    public ConnectionLimits {
        boolean times = pingIntervalNanos >= 0 && pingNanos > 0 && logoutNanos > 0;
        if (!times || requestsMax < 1 || requestsMax > REQUESTS_MAX || textBytesMax < 0) {
            throw new IllegalArgumentException("a limit of a connection is out of range: "
                    + requestsMax + " requests of at most " + REQUESTS_MAX);
        }
    }
}

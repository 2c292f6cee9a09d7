package org.lunarsan.iscsi.connection;

/**
 * Limits of one connection in the initiator role.
 *
 * <p>Threads: immutable.
 *
 * @param pingIntervalNanos when nothing has arrived for so long, the target is pinged; 0: never
 * @param pingNanos a pinged target that sends nothing for so long is taken for dead
 * @param logoutNanos from the Logout Request to its response
 * @param requestsMax commands and other requests in hand at once, those that wait for the window
 *        included; at most {@link #REQUESTS_MAX}
 * @param textBytesMax text gathered over the Text Responses of one exchange
 */
public record ConnectionLimits(long pingIntervalNanos, long pingNanos, long logoutNanos,
        int requestsMax, int textBytesMax) {
    /** The most requests that Initiator Task Tags have room for, less what the machine needs. */
    public static final int REQUESTS_MAX = 4000;

    private static final long SECOND = 1_000_000_000L;

    /** Five seconds each, 1,024 requests, 1 MiB of text. */
    public static final ConnectionLimits DEFAULT =
            new ConnectionLimits(5 * SECOND, 5 * SECOND, 5 * SECOND, 1024, 1 << 20);

    /**
     * Checks that they make sense.
     *
     * @throws IllegalArgumentException when they do not
     */
    public ConnectionLimits {
        boolean times = pingIntervalNanos >= 0 && pingNanos > 0 && logoutNanos > 0;
        if (!times || requestsMax < 1 || requestsMax > REQUESTS_MAX || textBytesMax < 0) {
            throw new IllegalArgumentException("a limit of a connection is out of range: "
                    + requestsMax + " requests of at most " + REQUESTS_MAX);
        }
    }
}

package org.lunarsan.initiator;

/**
 * What the sessions of a device have found out about their target, kept for those that follow.
 *
 * <p>Threads: any, behind one short lock.
 */
final class Quirks {
    /**
     * Further connections that are refused, or lost while the session goes on, in a row; then
     * sessions go on with those that work.
     */
    static final int RETRIES_MAX = 8;
    /**
     * Sessions that end because one of several connections is lost. After so many the target is
     * taken for one that wants commands in the order of their CmdSN (SPDK 23.01 does), though RFC
     * 7143 §4.2.2.1 has targets put them in order, and sessions have one connection from then on.
     */
    static final int ORDER_LOSSES_MAX = 3;
    /**
     * Sessions in a row that end with all connections, soon after a further one began to log in.
     * After so many, sessions have one connection.
     */
    static final int JOIN_LOSSES_MAX = 3;
    /**
     * A session that ends so soon after a further connection began to log in may end because of it:
     * a target that does not bear one shows it at its login or at its first commands.
     */
    static final long JOIN_LOSS_NANOS = 5_000_000_000L;
    /** Failures count together that lie no farther apart than so long. */
    static final long TOGETHER_NANOS = 600_000_000_000L;

    private final int connectionsWanted;
    private final Failures retries = new Failures();
    private final Failures losses = new Failures();
    private final Failures joinLosses = new Failures();
    private int connections;
    private boolean lacksNewerKeys;
    private boolean toldOfFewer;

    /** Failures that come soon after one another. */
    private static final class Failures {
        private int count;
        private long last;

        /** One more; how many there are. */
        int add(long now) {
            count = count > 0 && now - last > TOGETHER_NANOS ? 1 : count + 1;
            last = now;
            return count;
        }
    }

    /** Nothing was found yet. */
    Quirks(IscsiOptions options) {
        connectionsWanted = options.connections;
        connections = options.connections;
    }

    /** How many connections a session has, at most. */
    synchronized int connections() {
        return connections;
    }

    /**
     * A further connection was refused, or lost while {@code standing} others go on.
     *
     * @return whether another is to be tried
     */
    boolean noteRetry(String portal, int standing, String why, long now) {
        synchronized (this) {
            if (retries.add(now) < RETRIES_MAX) {
                return true;
            }
            retries.count = 0;
            connections = Math.min(connections, Math.max(standing, 1));
        }
        settle(portal, "a further one was refused or lost " + RETRIES_MAX + " times, the last time"
                + " because " + why);
        return false;
    }

    /** A session ended because one of its several connections was lost. */
    void noteLoss(String portal, String why, long now) {
        synchronized (this) {
            if (losses.add(now) < ORDER_LOSSES_MAX) {
                return;
            }
            losses.count = 0;
            connections = 1;
        }
        settle(portal, ORDER_LOSSES_MAX + " sessions were lost with one of several, as with targets"
                + " that want commands in the order of their CmdSN, the last time because " + why);
    }

    /**
     * The target ended a session of several connections with all of them, so long after one of them
     * had begun to join it.
     */
    void noteJoinedEnd(String portal, long nanosAfter, String why, long now) {
        synchronized (this) {
            if (nanosAfter >= JOIN_LOSS_NANOS) {
                joinLosses.count = 0;
                return;
            }
            if (joinLosses.add(now) < JOIN_LOSSES_MAX) {
                return;
            }
            joinLosses.count = 0;
            connections = 1;
        }
        settle(portal, JOIN_LOSSES_MAX + " sessions in a row ended soon after a further connection"
                + " began to log in, the last time because " + why);
    }

    private void settle(String portal, String why) {
        int left = connections();
        Log.warn(() -> portal + ": sessions go on with " + left + " of " + connectionsWanted
                + " connections until the device is opened again: " + why);
    }

    /** True for the first time that a session has fewer connections than it should. */
    synchronized boolean tellsOfFewer() {
        boolean first = !toldOfFewer;
        toldOfFewer = true;
        return first;
    }

    /** The target was away. What was lost before says nothing about several connections. */
    synchronized void forgetLosses() {
        losses.count = 0;
        joinLosses.count = 0;
    }

    /**
     * The target closed connections in a row over TaskReporting and iSCSIProtocolLevel, and let us
     * in without them.
     */
    synchronized void noteUnknownNewerKeys() {
        lacksNewerKeys = true;
    }

    /** A login has failed: the keys are offered to the next one anew. */
    synchronized void forgetUnknownNewerKeys() {
        lacksNewerKeys = false;
    }

    /** Whether TaskReporting and iSCSIProtocolLevel are left out. */
    synchronized boolean lacksNewerKeys() {
        return lacksNewerKeys;
    }
}

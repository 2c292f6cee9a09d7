package org.lunarsan.initiator;

/**
 * Quirks of a target that the sessions of a device have found, kept for later sessions.
 *
 * <p>Threads: any, behind one short lock.
 */
final class Quirks {
    /**
     * Number of further connections refused in a row, or lost while the session continues, after
     * which sessions continue with the connections that work.
     */
    static final int RETRIES_MAX = 8;
    /**
     * Number of sessions lost together with one of several connections, after which sessions have
     * one connection. The target then probably requires commands in the order of their CmdSN on
     * arrival (SPDK 23.01 does), although RFC 7143 §4.2.2.1 has targets put them in order.
     */
    static final int ORDER_LOSSES_MAX = 3;
    /**
     * Number of sessions in a row that ended with all connections soon after a further one began to
     * log in, after which sessions have one connection.
     */
    static final int JOIN_LOSSES_MAX = 3;
    /**
     * Time after the begin of a further login within which the end of a session counts as caused by
     * it: a target that does not support further connections shows it at the login or the first
     * commands.
     */
    static final long JOIN_LOSS_NANOS = 5_000_000_000L;
    /** Longest interval between failures that are counted together. */
    static final long TOGETHER_NANOS = 600_000_000_000L;

    private final int connectionsWanted;
    private final Failures retries = new Failures();
    private final Failures losses = new Failures();
    private final Failures joinLosses = new Failures();
    private int connections;
    private boolean lacksNewerKeys;
    private boolean toldOfFewer;

    /** Counts failures that occur soon after one another. */
    private static final class Failures {
        private int count;
        private long last;

        /** Counts one more failure; returns the count. */
        int add(long now) {
            count = count > 0 && now - last > TOGETHER_NANOS ? 1 : count + 1;
            last = now;
            return count;
        }
    }

    /** Creates a record without findings. */
    Quirks(IscsiOptions options) {
        connectionsWanted = options.connections;
        connections = options.connections;
    }

    /** Returns the largest number of connections of a session. */
    synchronized int connections() {
        return connections;
    }

    /**
     * Records that a further connection was refused, or lost while {@code standing} others
     * continue.
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
        report(portal, "a further one was refused or lost " + RETRIES_MAX + " times, the last time"
                + " because " + why);
        return false;
    }

    /** Records that a session ended because one of its several connections was lost. */
    void noteLoss(String portal, String why, long now) {
        synchronized (this) {
            if (losses.add(now) < ORDER_LOSSES_MAX) {
                return;
            }
            losses.count = 0;
            connections = 1;
        }
        report(portal, ORDER_LOSSES_MAX + " sessions were lost with one of several connections, as"
                + " with targets that require commands in CmdSN order, the last time because "
                + why);
    }

    /**
     * Records that the target ended a session with all its connections, {@code nanosAfter}
     * nanoseconds after one of them had begun to join it.
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
        report(portal, JOIN_LOSSES_MAX + " sessions in a row ended soon after a further connection"
                + " began to log in, the last time because " + why);
    }

    private void report(String portal, String why) {
        int left = connections();
        Log.warn(() -> portal + ": sessions continue with " + left + " of " + connectionsWanted
                + " connections until the device is opened again: " + why);
    }

    /** Returns true at the first call only: a session has fewer connections than configured. */
    synchronized boolean tellsOfFewer() {
        boolean first = !toldOfFewer;
        toldOfFewer = true;
        return first;
    }

    /**
     * Forgets earlier losses, which prove nothing about several connections if the target was
     * unreachable.
     */
    synchronized void forgetLosses() {
        losses.count = 0;
        joinLosses.count = 0;
    }

    /**
     * Records that the target repeatedly closed connections over TaskReporting and
     * iSCSIProtocolLevel, and accepted a login without them.
     */
    synchronized void noteUnknownNewerKeys() {
        lacksNewerKeys = true;
    }

    /** Records a failed login: the next one offers the keys again. */
    synchronized void forgetUnknownNewerKeys() {
        lacksNewerKeys = false;
    }

    /** True when TaskReporting and iSCSIProtocolLevel are left out. */
    synchronized boolean lacksNewerKeys() {
        return lacksNewerKeys;
    }
}

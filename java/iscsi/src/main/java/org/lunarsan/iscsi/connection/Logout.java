package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.LogoutReason;

/**
 * A logout. Unless another connection is meant, what is still in hand fails, then the connection
 * closes. RFC 7143 §11.14.
 *
 * <p>Threads: as {@link Request}.
 */
public final class Logout extends Request {
    final int reason;
    final int cid;
    int response;
    int timeToWaitSeconds;
    int timeToRetainSeconds;

    /**
     * A logout.
     *
     * @param reason see {@link LogoutReason}
     * @param cid which connection is to be closed; of no meaning for the session
     */
    public Logout(int reason, int cid) {
        this.reason = reason;
        this.cid = cid;
        this.immediate = true;
    }

    /** Whether it ends the connection that it is sent on. */
    boolean concerns(int own) {
        return reason == LogoutReason.CLOSE_SESSION || cid == own;
    }

    /**
     * How it ended.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.LogoutResult}
     */
    public int response() {
        return response;
    }

    /**
     * Time2Wait.
     *
     * @return seconds before a new login
     */
    public int timeToWaitSeconds() {
        return timeToWaitSeconds;
    }

    /**
     * Time2Retain.
     *
     * @return seconds that tasks are kept
     */
    public int timeToRetainSeconds() {
        return timeToRetainSeconds;
    }
}

package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.LogoutReason;

/**
 * A logout. Unless it closes another connection, pending requests fail, then the connection closes.
 * RFC 7143 §11.14.
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
     * Creates a logout.
     *
     * @param reason see {@link LogoutReason}
     * @param cid the connection to be closed; ignored for the session
     */
    public Logout(int reason, int cid) {
        this.reason = reason;
        this.cid = cid;
        this.immediate = true;
    }

    /** True if it ends the connection on which it is sent. */
    boolean concerns(int own) {
        return reason == LogoutReason.CLOSE_SESSION || cid == own;
    }

    /**
     * The result of the logout.
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
     * @return seconds for which tasks are kept
     */
    public int timeToRetainSeconds() {
        return timeToRetainSeconds;
    }
}

package org.lunarsan.iscsi.session;

/** End of a connection, as its session distinguishes it. */
public enum ConnectionEnding {
    /** A logout of this connection alone. */
    CONNECTION_LOGOUT,

    /** A logout of the session. */
    SESSION_LOGOUT,

    /** The login did not complete. */
    NOT_JOINED,

    /** The transport failed, or the target became silent. */
    LOST,

    /** The target violated the protocol: all connections have to end. RFC 7143 §7.7. */
    VIOLATION
}

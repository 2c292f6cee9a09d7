package org.lunarsan.iscsi.session;

/** How a connection went, as far as its session must know. */
public enum Ending {
    /** By a logout of this connection alone. */
    CONNECTION_LOGOUT,

    /** By a logout of the session. */
    SESSION_LOGOUT,

    /** Before its login was through. */
    NOT_JOINED,

    /** The transport failed, or the target fell silent. */
    LOST,

    /** The target broke the protocol: all connections must go. RFC 7143 §7.7. */
    VIOLATION
}

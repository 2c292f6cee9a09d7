package org.lunarsan.iscsi.text;

/** Scope of a key. RFC 7143 §13. */
public enum Scope {
    /** SW: the session. */
    SESSION,

    /** CO: the connection. */
    CONNECTION
}

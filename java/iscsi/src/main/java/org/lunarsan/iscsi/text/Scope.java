package org.lunarsan.iscsi.text;

/** How far a key reaches. RFC 7143 §13. */
public enum Scope {
    /** SW. */
    SESSION,

    /** CO. */
    CONNECTION
}

package org.lunarsan.iscsi.text;

/** Phase in which a key may be sent: the "Use" of RFC 7143 §13. */
public enum Use {
    /** LO: on the login of the leading connection only. */
    LEADING_ONLY,

    /** IO: in any login, never after. */
    INITIALIZE_ONLY,

    /** FFPO: in full feature phase only. */
    FULL_FEATURE_ONLY,

    /** ALL: in login and after. */
    ALL
}

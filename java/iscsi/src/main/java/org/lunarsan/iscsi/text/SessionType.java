package org.lunarsan.iscsi.text;

/** What kind of session is asked for. RFC 7143 §13.21. */
public enum SessionType {
    /** Full access to one target. */
    NORMAL,

    /** SendTargets only. */
    DISCOVERY
}

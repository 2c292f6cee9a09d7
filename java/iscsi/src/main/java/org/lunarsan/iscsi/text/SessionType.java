package org.lunarsan.iscsi.text;

/** Kind of session. RFC 7143 §13.21. */
public enum SessionType {
    /** Full access to one target. */
    NORMAL,

    /** SendTargets only. */
    DISCOVERY
}

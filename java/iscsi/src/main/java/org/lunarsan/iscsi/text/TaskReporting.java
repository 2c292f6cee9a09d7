package org.lunarsan.iscsi.text;

/** Reporting of aborts of several tasks, in the order of the list. RFC 7143 §13.23. */
public enum TaskReporting {
    /** The behaviour of RFC 3720. */
    RFC3720,

    /** Responses are fenced, RFC 7143 §4.2.2.3.3. */
    RESPONSE_FENCE,

    /** Fast multi-task abort, RFC 7143 §4.2.3.4. */
    FAST_ABORT
}

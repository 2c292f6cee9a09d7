package org.lunarsan.iscsi.text;

/** Sides that may send a key. RFC 7143 §13. */
public enum Senders {
    /** Only the initiator. */
    INITIATOR,

    /** Only the target. */
    TARGET,

    /** Initiator and target. */
    BOTH
}

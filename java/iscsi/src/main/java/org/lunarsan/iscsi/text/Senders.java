package org.lunarsan.iscsi.text;

/** Who may send a key. RFC 7143 §13. */
public enum Senders {
    /** The initiator alone. */
    INITIATOR,

    /** The target alone. */
    TARGET,

    /** Initiator and target. */
    BOTH
}

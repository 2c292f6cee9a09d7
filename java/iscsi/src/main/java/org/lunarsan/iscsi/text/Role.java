package org.lunarsan.iscsi.text;

/** Our side of the connection. */
public enum Role {
    /** The side that proposes first. */
    INITIATOR,

    /** The side that answers and declares. */
    TARGET
}

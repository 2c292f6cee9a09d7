package org.lunarsan.iscsi.text;

/** On which side of the connection we are. */
public enum Role {
    /** We propose first. */
    INITIATOR,

    /** We answer, and declare. */
    TARGET
}

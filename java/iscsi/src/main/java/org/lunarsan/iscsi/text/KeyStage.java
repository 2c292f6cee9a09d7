package org.lunarsan.iscsi.text;

/** Which stage of the login a key belongs to. RFC 7143 §12, §13. */
public enum KeyStage {
    /** SecurityNegotiation. */
    SECURITY,

    /** LoginOperationalNegotiation. */
    OPERATIONAL,

    /** Any-Stage. */
    ANY
}

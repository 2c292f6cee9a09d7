package org.lunarsan.iscsi.text;

/** Stage of the login to which a key belongs. RFC 7143 §12, §13. */
public enum KeyStage {
    /** SecurityNegotiation. */
    SECURITY,

    /** LoginOperationalNegotiation. */
    OPERATIONAL,

    /** Any-Stage. */
    ANY
}

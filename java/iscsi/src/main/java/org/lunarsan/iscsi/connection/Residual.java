package org.lunarsan.iscsi.connection;

/** How the length of a transfer differs from what was expected. RFC 7143 §11.4.5. */
public enum Residual {
    /** It does not. */
    NONE,

    /** Fewer bytes were moved than expected. */
    UNDERFLOW,

    /** More bytes would have been moved had they been expected. */
    OVERFLOW
}

package org.lunarsan.iscsi.connection;

/** Difference between the length of a transfer and the expected one. RFC 7143 §11.4.5. */
public enum Residual {
    /** No difference. */
    NONE,

    /** Fewer bytes were moved than expected. */
    UNDERFLOW,

    /** More bytes would have been moved if they had been expected. */
    OVERFLOW
}

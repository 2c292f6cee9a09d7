package org.lunarsan.iscsi.text;

/** Protection of headers or data, in the order of the list. RFC 7143 §13.1. */
public enum Digest {
    /** None. */
    NONE,

    /** CRC32C. */
    CRC32C
}

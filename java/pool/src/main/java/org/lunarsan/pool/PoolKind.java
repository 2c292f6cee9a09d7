package org.lunarsan.pool;

/** How a pool joins its members. A value; for any thread. */
public enum PoolKind {
    /** Stripes in turn on all members; the loss of one is the loss of all. */
    STRIPED(1),
    /** The same blocks on all members. */
    MIRRORED(2);

    private final int code;

    PoolKind(int code) {
        this.code = code;
    }

    /** The byte in a label. */
    int code() {
        return code;
    }

    /** The kind of a byte in a label; null when there is none. */
    static PoolKind of(int code) {
        for (PoolKind kind : values()) {
            if (kind.code == code) {
                return kind;
            }
        }
        return null;
    }
}

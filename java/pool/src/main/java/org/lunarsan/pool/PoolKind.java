package org.lunarsan.pool;

/** Method by which a pool joins its members. Immutable and thread-safe. */
public enum PoolKind {
    /** Stripes on all members in turn; the loss of one member is the loss of the pool. */
    STRIPED(1),
    /** The same blocks on all members. */
    MIRRORED(2);

    private final int code;

    PoolKind(int code) {
        this.code = code;
    }

    /** Returns the byte in a label. */
    int code() {
        return code;
    }

    /** Returns the kind for a byte in a label, or null if there is none. */
    static PoolKind of(int code) {
        for (PoolKind kind : values()) {
            if (kind.code == code) {
                return kind;
            }
        }
        return null;
    }
}

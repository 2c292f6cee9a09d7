package org.lunarsan.pool;

/** State of a member of a pool. Immutable and thread-safe. */
public enum MemberState {
    /** The member has all writes; it is read and written. */
    CURRENT,
    /**
     * The member is being copied to; it is written, and read where the copy is done. In a read-only
     * pool the copy waits for an opening with write access.
     */
    SYNCING,
    /** The member missed writes; it is neither read nor written. */
    STALE,
    /** The member is missing, or could not be opened. */
    MISSING
}

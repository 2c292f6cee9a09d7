package org.lunarsan.pool;

/** What a member of a pool is good for. A value; for any thread. */
public enum MemberState {
    /** It has all that was written; it is read and written. */
    CURRENT,
    /**
     * It is being copied to; it is written, and read where the copy is done. In a pool that is
     * read-only the copy waits for an opening that may write.
     */
    SYNCING,
    /** It missed writes; it is neither read nor written. */
    STALE,
    /** It was not there, or could not be opened. */
    MISSING
}

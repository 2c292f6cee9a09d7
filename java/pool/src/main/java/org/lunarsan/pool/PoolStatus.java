package org.lunarsan.pool;

import java.util.List;
import java.util.UUID;

/**
 * Status of a pool. Immutable and thread-safe.
 *
 * @param id the pool
 * @param kind how it joins its members
 * @param health its health
 * @param generation number of changes of its members' states
 * @param members in the order of their slots
 * @param dirtyRegions regions that would have to be copied after a power cut now; mirrors only
 * @param regions number of regions; 0 when the pool has none
 */
public record PoolStatus(
        UUID id,
        PoolKind kind,
        Health health,
        long generation,
        List<MemberStatus> members,
        long dirtyRegions,
        long regions) {
    /** Health of a pool. */
    public enum Health {
        /** All members are current. */
        HEALTHY,
        /** The pool works; a copy is running. */
        SYNCING,
        /** The pool works without some members. */
        DEGRADED,
        /** No member is current: all calls fail. */
        FAILED,
        /** The pool is not open. */
        CLOSED
    }

    /** Copies the list. */
    public PoolStatus {
        members = List.copyOf(members);
    }
}

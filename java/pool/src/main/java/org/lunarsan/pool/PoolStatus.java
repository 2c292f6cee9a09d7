package org.lunarsan.pool;

import java.util.List;
import java.util.UUID;

/**
 * How a pool does. A value; for any thread.
 *
 * @param id the pool
 * @param kind how it joins its members
 * @param health what it is good for
 * @param generation how often its members' states were changed
 * @param members in the order of their places
 * @param dirtyRegions regions that a power cut now would leave to be compared; mirrors only
 * @param regions how many regions there are; 0 when it has none
 */
public record PoolStatus(
        UUID id,
        PoolKind kind,
        Health health,
        long generation,
        List<MemberStatus> members,
        long dirtyRegions,
        long regions) {
    /** What a pool is good for. */
    public enum Health {
        /** All members are current. */
        HEALTHY,
        /** It works; a copy is under way. */
        SYNCING,
        /** It works without some members. */
        DEGRADED,
        /** No member is current: everything is refused. */
        FAILED,
        /** It is not open. */
        CLOSED
    }

    /** Checks. */
    public PoolStatus {
        members = List.copyOf(members);
    }
}

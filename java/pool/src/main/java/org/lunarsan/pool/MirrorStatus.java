package org.lunarsan.pool;

import java.util.List;
import java.util.UUID;

/** Builds the status of a mirror. Stateless and thread-safe. */
final class MirrorStatus {
    private MirrorStatus() {}

    static PoolStatus closed() {
        return new PoolStatus(new UUID(0, 0), PoolKind.MIRRORED, PoolStatus.Health.CLOSED, 0,
                List.of(), 0, 0);
    }

    static PoolStatus of(Mirror mirror) {
        Membership membership = mirror.membership();
        List<MemberStatus> members =
                membership.members().stream().map(MirrorMember::status).toList();
        PoolLabel label = membership.label();
        return new PoolStatus(label.pool(), PoolKind.MIRRORED, health(membership, members),
                label.generation(), members, mirror.intents().dirtyCount(),
                mirror.intents().regions());
    }

    private static PoolStatus.Health health(Membership membership, List<MemberStatus> members) {
        if (membership.current().isEmpty()) {
            return PoolStatus.Health.FAILED;
        }
        if (members.stream().allMatch(member -> member.state() == MemberState.CURRENT)) {
            return PoolStatus.Health.HEALTHY;
        }
        // A read-only pool copies nothing, even if a copy is needed.
        return !membership.isOpenedReadOnly()
                        && members.stream().anyMatch(one -> one.state() == MemberState.SYNCING)
                ? PoolStatus.Health.SYNCING
                : PoolStatus.Health.DEGRADED;
    }
}

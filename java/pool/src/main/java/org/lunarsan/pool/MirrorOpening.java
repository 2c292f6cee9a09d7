package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import org.lunarsan.device.DeviceException;

/** Makes a mirror of the members that were found. Confined to the thread that opens it. */
final class MirrorOpening {
    private final String name;
    private final Assembly found;
    private final boolean openDegraded;
    private final Duration memberWait;
    private final List<MirrorMember> members = new ArrayList<>();
    private final List<MirrorMember> current = new ArrayList<>();
    /**
     * Set when a member is read-only: none is written, and marked regions wait for another opening.
     */
    private boolean readOnly;
    /** Regions that were marked for writes; not those of a new mirror. */
    private final BitSet written = new BitSet();

    MirrorOpening(String name, Assembly found, boolean openDegraded, Duration memberWait) {
        this.name = name;
        this.found = found;
        this.openDegraded = openDegraded;
        this.memberWait = memberWait;
    }

    Mirror open() throws DeviceException {
        if (!openDegraded) {
            found.requireAll();
        }
        for (int slot = 0; slot < found.count(); slot++) {
            add(slot);
        }
        if (current.isEmpty()) {
            throw found.refuse("no current member is present");
        }
        readOnly = members.stream()
                .anyMatch(member -> member.device != null && member.device.isReadOnly());
        IntentLog intents = readIntents();
        Mirror mirror = new Mirror(name, found.label(), members, intents, memberWait);
        if (!readOnly) {
            // A flush may have failed before the pool was last closed.
            mirror.membership().regionsToRewrite().add(written);
        }
        if (!readOnly && !slotsOfCurrent().equals(found.label().current())) {
            // Before any write that the missing members miss.
            mirror.membership().setCurrent(current);
        }
        return mirror;
    }

    private void add(int slot) {
        Assembly.Present present = found.member(slot);
        MirrorMember member;
        if (present == null) {
            member = new MirrorMember(slot, null, MemberState.MISSING);
        } else {
            boolean good = found.isCurrent(slot);
            MemberState state = good ? MemberState.CURRENT : MemberState.STALE;
            member = new MirrorMember(slot, present.device(), state);
            if (good) {
                current.add(member);
            }
        }
        members.add(member);
    }

    private BitSet slotsOfCurrent() {
        BitSet slots = new BitSet();
        current.forEach(member -> slots.set(member.slot));
        return slots;
    }

    /**
     * Returns the regions that any current member has marked; all regions, if one has no valid
     * page.
     */
    private IntentLog readIntents() throws DeviceException {
        PoolLabel label = found.label();
        int regions = (int) PoolLayout.regions(label.dataBlocks(), label.unitBlocks());
        BitSet dirty = new BitSet();
        long sequence = 0;
        for (MirrorMember member : current) {
            Optional<IntentPage> page =
                    MemberArea.readIntent(member.device, label.pool(), regions);
            if (page.isPresent()) {
                dirty.or(page.get().dirty());
                if (page.get().sequence() > PoolFormatter.INTENT_SEQUENCE_LAST) {
                    written.or(page.get().dirty());
                }
                sequence = Math.max(sequence, page.get().sequence());
            } else {
                dirty.set(0, regions);
            }
        }
        IntentLog log = new IntentLog(
                label.pool(), regions, label.unitBlocks(), dirty, sequence, memberWait);
        if (!dirty.isEmpty()) {
            // The content of the first member counts; these regions are copied from it to the
            // others.
            for (MirrorMember member : current) {
                if (!readOnly) {
                    log.copyTo(member, Parallel.WITHOUT_END);
                }
                if (member != current.getFirst()) {
                    member.miss(dirty);
                }
            }
        }
        return log;
    }
}

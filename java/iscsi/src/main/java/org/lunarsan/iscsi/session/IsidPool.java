package org.lunarsan.iscsi.session;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;

/**
 * Assigns ISIDs, the initiator's part of a session identifier. No two sessions of this initiator
 * with one target share one (the ISID rule, RFC 7143 §4.4.3), and the same few are reused for a
 * target (conservative reuse, §11.12.5), because persistent reservations depend on them.
 *
 * <p>Threads: any, behind one lock.
 */
public final class IsidPool {
    /** T = 10b in the first byte: the naming authority is a random number. */
    private static final long RANDOM_FORMAT = 0x80L << 40;
    private static final int QUALIFIER_MAX = 0xffff;
    private static final int RANDOM_MASK = 0xff_ffff;

    private final long prefix;
    private final Map<String, Set<Integer>> taken = new HashMap<>();

    /**
     * Creates a pool for one initiator name.
     *
     * @param random 24 bits that distinguish this initiator's ISIDs from those of another one with
     *        the same name: fresh from the operating system, or kept if reservations have to
     *        survive a restart
     */
    public IsidPool(int random) {
        this.prefix = RANDOM_FORMAT | (long) (random & RANDOM_MASK) << 16;
    }

    /**
     * Takes the lowest ISID that no session with this target has.
     *
     * @param targetName compared literally, so pass it in normal form
     * @return six bytes; empty when all 65,536 are in use
     */
    public synchronized OptionalLong take(String targetName) {
        Set<Integer> used = taken.computeIfAbsent(targetName, name -> new HashSet<>());
        for (int qualifier = 0; qualifier <= QUALIFIER_MAX; qualifier++) {
            if (used.add(qualifier)) {
                return OptionalLong.of(prefix | qualifier);
            }
        }
        return OptionalLong.empty();
    }

    /**
     * Returns the ISID of a session that has ended.
     *
     * @param targetName as passed to {@link #take}
     * @param isid from {@link #take}
     */
    public synchronized void giveBack(String targetName, long isid) {
        Set<Integer> used = taken.get(targetName);
        if (used != null) {
            used.remove((int) isid & QUALIFIER_MAX);
            if (used.isEmpty()) {
                taken.remove(targetName);
            }
        }
    }

    /**
     * Number of ISIDs in use, over all targets.
     *
     * @return the number
     */
    public synchronized int inUse() {
        return taken.values().stream().mapToInt(Set::size).sum();
    }
}

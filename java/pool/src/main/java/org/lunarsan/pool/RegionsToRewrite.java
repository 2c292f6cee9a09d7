package org.lunarsan.pool;

import java.util.BitSet;

/**
 * Regions of a mirror that only one member has, and for which its flush proves nothing. After a
 * failed flush, a device may consider its blocks clean: reads return them, no later flush writes
 * them, and a power cut undoes them. Such a region is rewritten from the content of the member
 * before its mark is removed and before it is copied to another member.
 *
 * <p>Regions are urgent after a loss that the pool has seen: a flush succeeds only after they were
 * rewritten. The others wait for a copy: they were marked when the pool was opened, and a flush may
 * have failed before.
 *
 * <p>Thread-safe. Regions are added behind the membership lock, held alone.
 */
final class RegionsToRewrite {
    private final BitSet regions = new BitSet();
    private final BitSet urgent = new BitSet();
    private int additions;
    private volatile boolean empty = true;

    synchronized void add(BitSet more) {
        regions.or(more);
        additions++;
        empty = regions.isEmpty();
    }

    synchronized void addUrgent(BitSet more) {
        urgent.or(more);
        add(more);
    }

    boolean has(int region) {
        if (empty) {
            return false;
        }
        synchronized (this) {
            return regions.get(region);
        }
    }

    /** Returns the first urgent region at or after {@code from}; -1: none. */
    int nextUrgent(int from) {
        if (empty) {
            return -1;
        }
        synchronized (this) {
            return urgent.nextSetBit(from);
        }
    }

    /** Number of additions of regions. */
    synchronized int additions() {
        return additions;
    }

    /** Removes a region that was rewritten, unless regions were added since. */
    synchronized void remove(int region, int additionsBefore) {
        if (additions == additionsBefore) {
            regions.clear(region);
            urgent.clear(region);
            empty = regions.isEmpty();
        }
    }
}

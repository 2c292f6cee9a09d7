package org.lunarsan.pool;

import java.util.BitSet;

/**
 * Regions of a mirror that one member alone has, where a flush of this member proves nothing. After
 * a flush that failed, a device may call its blocks clean: reads show them, no later flush writes
 * them, and a power cut undoes them. Such a region is written anew from what the member shows
 * before its mark is taken away and before it is copied to another member.
 *
 * <p>Urgent ones are those of a loss that the pool has seen: a flush succeeds when they are written
 * anew. The others wait for a copy: they were marked when the pool was opened, and nobody knows
 * whether a flush had failed.
 *
 * <p>For any thread. Regions are added behind the membership lock, held alone.
 */
final class UnsecuredRegions {
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

    /** The first urgent region from one on; -1: none. */
    int nextUrgent(int from) {
        if (empty) {
            return -1;
        }
        synchronized (this) {
            return urgent.nextSetBit(from);
        }
    }

    /** How often regions were added. */
    synchronized int additions() {
        return additions;
    }

    /** A region was written anew, unless regions were added since. */
    synchronized void remove(int region, int additionsBefore) {
        if (additions == additionsBefore) {
            regions.clear(region);
            urgent.clear(region);
            empty = regions.isEmpty();
        }
    }
}

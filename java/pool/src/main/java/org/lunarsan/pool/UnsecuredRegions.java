package org.lunarsan.pool;

import java.util.BitSet;

/**
 * Regions of a mirror that one member alone has, where a flush of this member proves nothing. After
 * a flush that failed, a device may call its blocks clean: reads show them, no later flush writes
 * them, and a power cut undoes them. Such a region is written anew from what the member shows
 * before its mark is taken away and before it is copied to another member.
 *
 * <p>For any thread. Regions are added behind the membership lock, held alone.
 */
final class UnsecuredRegions {
    private final BitSet regions = new BitSet();
    private int additions;
    private volatile boolean empty = true;

    /** The regions at some time, and how often regions had been added then. */
    record Snapshot(BitSet regions, int additions) {}

    synchronized void add(BitSet more) {
        regions.or(more);
        additions++;
        empty = regions.isEmpty();
    }

    boolean isEmpty() {
        return empty;
    }

    boolean has(int region) {
        if (empty) {
            return false;
        }
        synchronized (this) {
            return regions.get(region);
        }
    }

    synchronized Snapshot snapshot() {
        return new Snapshot((BitSet) regions.clone(), additions);
    }

    /** Removes all regions, unless some were added since a snapshot was taken. */
    synchronized void clear(Snapshot since) {
        if (additions == since.additions) {
            regions.clear();
            empty = true;
        }
    }
}

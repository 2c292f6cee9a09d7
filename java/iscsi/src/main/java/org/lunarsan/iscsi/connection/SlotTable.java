package org.lunarsan.iscsi.connection;

import java.util.Arrays;

/**
 * Pending requests, indexed by their Initiator Task Tag. RFC 7143 §11.2.1.8 requires tags that are
 * unique in the session: six bits are the connection's, twelve are the slot, and fourteen count up
 * each time that a slot is reused, so that a late answer is not taken for that of a newer request.
 * Slots are reused in the order in which they became free.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class SlotTable {
    /** One less than twelve bits allow, so that the reserved tag is never used. */
    static final int CAPACITY_MAX = 0xfff;

    private static final int ORDINAL_SHIFT = 26;
    private static final int GENERATION_SHIFT = 12;
    private static final int GENERATION_MASK = 0x3fff;
    private static final int CAPACITY_FIRST = 16;

    private final int ordinal;
    private Request[] slots = new Request[CAPACITY_FIRST];
    private short[] generations = new short[CAPACITY_FIRST];
    /** Free slots in a ring. */
    private short[] free = new short[CAPACITY_FIRST];
    private int firstFree;
    private int used;

    SlotTable(int ordinal) {
        this.ordinal = ordinal;
        for (int at = 0; at < CAPACITY_FIRST; at++) {
            free[at] = (short) at;
        }
    }

    /** Returns the number of pending requests. */
    int used() {
        return used;
    }

    int capacity() {
        return slots.length;
    }

    /** Returns the request in a slot below {@link #capacity}, or null. */
    Request at(int slot) {
        return slots[slot];
    }

    /** Adds a request and assigns its tag. The caller has checked that a slot is free. */
    void put(Request request) {
        if (used == slots.length) {
            grow();
        }
        int slot = free[firstFree];
        firstFree = (firstFree + 1) % free.length;
        used++;
        slots[slot] = request;
        int generation = ++generations[slot] & GENERATION_MASK;
        request.slot = slot;
        request.tag = ordinal << ORDINAL_SHIFT | generation << GENERATION_SHIFT | slot;
    }

    /** Returns the request with a tag received from the peer, or null. */
    Request find(int tag) {
        int slot = tag & CAPACITY_MAX;
        Request request = slot < slots.length ? slots[slot] : null;
        return request != null && request.tag == tag ? request : null;
    }

    void remove(Request request) {
        slots[request.slot] = null;
        free[(firstFree + slots.length - used) % free.length] = (short) request.slot;
        used--;
    }

    /** Doubles the capacity. All slots are taken, so that the ring is empty and can start anew. */
    private void grow() {
        int old = slots.length;
        int capacity = Math.min(2 * old, CAPACITY_MAX);
        if (capacity == old) {
            throw new IllegalStateException("more requests than there are Initiator Task Tags");
        }
        slots = Arrays.copyOf(slots, capacity);
        generations = Arrays.copyOf(generations, capacity);
        free = new short[capacity];
        firstFree = 0;
        for (int at = old; at < capacity; at++) {
            free[at - old] = (short) at;
        }
    }
}

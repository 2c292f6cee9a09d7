package org.lunarsan.iscsi.connection;

import java.util.Arrays;

/**
 * Requests in hand, found by their Initiator Task Tag: the tag says the place. RFC 7143 §11.2.1.8
 * asks for tags that are unique in the session; so six bits are the connection's, twelve are the
 * place, and fourteen count up each time that a place is taken again, so that what comes late is
 * not taken for an answer to something newer. Places are taken in the order they became free.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class SlotTable {
    /** One less than twelve bits could name: the reserved tag is never given. */
    static final int CAPACITY_MAX = 0xfff;

    private static final int ORDINAL_SHIFT = 26;
    private static final int GENERATION_SHIFT = 12;
    private static final int GENERATION_MASK = 0x3fff;
    private static final int CAPACITY_FIRST = 16;

    private final int ordinal;
    private Request[] slots = new Request[CAPACITY_FIRST];
    private short[] generations = new short[CAPACITY_FIRST];
    /** Free places in a ring. */
    private short[] free = new short[CAPACITY_FIRST];
    private int firstFree;
    private int used;

    SlotTable(int ordinal) {
        this.ordinal = ordinal;
        for (int at = 0; at < CAPACITY_FIRST; at++) {
            free[at] = (short) at;
        }
    }

    /** How many are in hand. */
    int used() {
        return used;
    }

    int capacity() {
        return slots.length;
    }

    /** What is at a place below {@link #capacity}, or null. */
    Request at(int slot) {
        return slots[slot];
    }

    /** Takes one in and gives it its tag. The caller has seen that there is room. */
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

    /** The request of a tag as it came from the peer, or null. */
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

    /** All places are taken, so that the ring is empty and may begin anew. */
    private void grow() {
        int old = slots.length;
        int capacity = Math.min(2 * old, CAPACITY_MAX);
        if (capacity == old) {
            throw new IllegalStateException("more requests than Initiator Task Tags have room for");
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

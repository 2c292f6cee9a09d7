package org.lunarsan.iscsi.connection;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/**
 * Data-Out that is due, in the order it was asked for: unsolicited, or what one R2T asked for. RFC
 * 7143 §11.8 asks for that order. Entries are kept for the next ones.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class BurstQueue {
    /** Entries that are kept when they are over. */
    private static final int SPARE_MAX = 64;

    private final ArrayDeque<Burst> due = new ArrayDeque<>(1);
    private final List<Burst> spare = new ArrayList<>(0);

    /** One sequence of Data-Out. */
    static final class Burst {
        Command command;
        /** The reserved tag for unsolicited data. */
        int targetTransferTag;
        /** As the R2T says; zero for unsolicited data. */
        long lun;
        int atBytes;
        int endBytes;
        int dataSn;
    }

    void add(Command command, int targetTransferTag, long lun, int atBytes, int endBytes) {
        Burst burst = spare.isEmpty() ? new Burst() : spare.removeLast();
        burst.command = command;
        burst.targetTransferTag = targetTransferTag;
        burst.lun = lun;
        burst.atBytes = atBytes;
        burst.endBytes = endBytes;
        burst.dataSn = 0;
        due.addLast(burst);
    }

    /** The oldest that may go on, or null. */
    Burst next() {
        Burst first = due.peekFirst();
        if (first == null || first.command.pausedBy == null) {
            return first;
        }
        for (Burst burst : due) {
            if (burst.command.pausedBy == null) {
                return burst;
            }
        }
        return null;
    }

    void remove(Burst burst) {
        if (due.peekFirst() == burst) {
            due.pollFirst();
        } else {
            due.remove(burst);
        }
        keep(burst);
    }

    void removeAll(Command command) {
        if (due.isEmpty()) {
            return;
        }
        for (Iterator<Burst> all = due.iterator(); all.hasNext();) {
            Burst burst = all.next();
            if (burst.command == command) {
                all.remove();
                keep(burst);
            }
        }
    }

    void clear() {
        due.clear();
    }

    boolean isEmpty() {
        return due.isEmpty();
    }

    private void keep(Burst burst) {
        burst.command = null;
        if (spare.size() < SPARE_MAX) {
            spare.add(burst);
        }
    }
}

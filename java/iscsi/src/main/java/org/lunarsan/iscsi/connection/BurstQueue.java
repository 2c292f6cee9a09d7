package org.lunarsan.iscsi.connection;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/**
 * Sequences of Data-Out that are due, unsolicited or solicited by one R2T, in the order of their
 * requests, as RFC 7143 §11.8 requires. Entries are kept for reuse.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class BurstQueue {
    /** Number of ended entries that are kept. */
    private static final int SPARE_MAX = 64;

    private final ArrayDeque<Burst> due = new ArrayDeque<>(1);
    private final List<Burst> spare = new ArrayList<>(0);

    /** One sequence of Data-Out. */
    static final class Burst {
        Command command;
        /** The tag of the R2T, or the reserved tag for unsolicited data. */
        int targetTransferTag;
        /** The LUN of the R2T; zero for unsolicited data. */
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

    /** Returns the oldest sequence that may continue, or null. */
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

package org.lunarsan.initiator;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The tasks of one connection: how many there may be at once, and the free ones.
 *
 * <p>Threads: any. Who takes one waits until there is one.
 */
final class Tasks {
    /** What a command weighs besides its data. */
    private static final long COMMAND_BYTES = 512;
    /** Whoever waits is let in when the connection is over, to find that out. */
    private static final int ALL = 1 << 20;

    private final Connection home;
    private final Semaphore places;
    private final AtomicLong outstandingBytes = new AtomicLong();
    private final Task[] all;
    private int made;
    private Task free;
    private int freeCount;

    Tasks(Connection home, int depth) {
        this.home = home;
        places = new Semaphore(depth);
        all = new Task[depth];
    }

    /** Data and commands under way, in bytes. */
    long outstandingBytes() {
        return outstandingBytes.get();
    }

    /** Waits for a place; null when the connection is over. */
    Task take(long dataBytes) {
        places.acquireUninterruptibly();
        return taken(dataBytes);
    }

    /** A place, if there is one; null when there is none, or the connection is over. */
    Task tryTake(long dataBytes) {
        return places.tryAcquire() ? taken(dataBytes) : null;
    }

    private Task taken(long dataBytes) {
        if (home.isOver()) {
            places.release();
            return null;
        }
        Task task;
        synchronized (this) {
            task = free;
            if (task == null) {
                task = new Task(home);
                all[made++] = task;
            } else {
                free = task.next;
                freeCount--;
            }
        }
        task.renew();
        task.weight = COMMAND_BYTES + dataBytes;
        outstandingBytes.addAndGet(task.weight);
        return task;
    }

    /** A task that came back, or was not submitted, is free again. */
    void give(Task task) {
        task.clear();
        outstandingBytes.addAndGet(-task.weight);
        synchronized (this) {
            task.next = free;
            free = task;
            freeCount++;
        }
        places.release();
    }

    /** The connection is over: whoever waits for a place finds out. */
    void close() {
        places.release(ALL);
    }

    /** A use of a task that was not answered in time, or not yet. */
    record Use(Task task, long use) {
    }

    /** One that was not answered in time, noted as such; null when there is none. */
    synchronized Use overdue(long now) {
        for (int at = 0; at < made; at++) {
            Task task = all[at];
            long use = task.expire(now);
            if (use != Task.NO_USE) {
                return new Use(task, use);
            }
        }
        return null;
    }

    /** All that are under way now are added. */
    synchronized void addUnderWay(List<Use> uses) {
        for (int at = 0; at < made; at++) {
            long use = all[at].useUnderWay();
            if (use != Task.NO_USE) {
                uses.add(new Use(all[at], use));
            }
        }
    }

    /** Where nothing is under way, nothing is kept: an idle connection is small. */
    synchronized void trim() {
        if (freeCount == made) {
            Arrays.fill(all, 0, made, null);
            made = 0;
            freeCount = 0;
            free = null;
        }
    }
}

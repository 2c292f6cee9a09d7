package org.lunarsan.initiator;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The tasks of one connection: limits their number and keeps the free ones.
 *
 * <p>Threads: any. A thread that takes one waits until one is free.
 */
final class Tasks {
    /** Bytes counted for a command in addition to its data. */
    private static final long COMMAND_BYTES = 512;
    /**
     * Number of permits released when the connection is over, so that all waiting threads return.
     */
    private static final int ALL = 1 << 20;

    private final Connection connection;
    private final Semaphore permits;
    private final AtomicLong outstandingBytes = new AtomicLong();
    private final Task[] all;
    private int created;
    private Task free;
    private int freeCount;

    Tasks(Connection connection, int depth) {
        this.connection = connection;
        permits = new Semaphore(depth);
        all = new Task[depth];
    }

    /** Returns the number of pending bytes: data and commands. */
    long outstandingBytes() {
        return outstandingBytes.get();
    }

    /** Takes a task, waiting for a free one; null when the connection is over. */
    Task take(long dataBytes) {
        permits.acquireUninterruptibly();
        return taken(dataBytes);
    }

    /** Takes a task if one is free; null when none is, or the connection is over. */
    Task tryTake(long dataBytes) {
        return permits.tryAcquire() ? taken(dataBytes) : null;
    }

    private Task taken(long dataBytes) {
        if (connection.isOver()) {
            permits.release();
            return null;
        }
        Task task;
        synchronized (this) {
            task = free;
            if (task == null) {
                task = new Task(connection);
                all[created++] = task;
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

    /** Frees a task that has completed or was not submitted. */
    void give(Task task) {
        task.clear();
        outstandingBytes.addAndGet(-task.weight);
        synchronized (this) {
            task.next = free;
            free = task;
            freeCount++;
        }
        permits.release();
    }

    /** Releases all waiting threads: the connection is over. */
    void close() {
        permits.release(ALL);
    }

    /** One use of a task, pending or overdue. */
    record Use(Task task, long use) {
    }

    /** Returns an overdue use and marks it as such; null if there is none. */
    synchronized Use overdue(long now) {
        for (int at = 0; at < created; at++) {
            Task task = all[at];
            long use = task.expire(now);
            if (use != Task.NO_USE) {
                return new Use(task, use);
            }
        }
        return null;
    }

    /** Adds all uses that are pending now. */
    synchronized void addUnderWay(List<Use> uses) {
        for (int at = 0; at < created; at++) {
            long use = all[at].useUnderWay();
            if (use != Task.NO_USE) {
                uses.add(new Use(all[at], use));
            }
        }
    }

    /** Drops all tasks if none is in use, so that an idle connection is small. */
    synchronized void trim() {
        if (freeCount == created) {
            Arrays.fill(all, 0, created, null);
            created = 0;
            freeCount = 0;
            free = null;
        }
    }
}

package org.lunarsan.initiator;

import java.util.ArrayList;
import java.util.List;

/**
 * The thread that reads one connection. Requests that callbacks submit in it are not sent at once,
 * but after all PDUs of one read, in one write for each connection concerned. Virtual threads that
 * wait for answers are woken together at the same point.
 *
 * <p>Threads: its own, except for the constructor.
 */
final class ReaderThread extends Thread {
    /** Enough for all code that runs here, including callbacks of callers. */
    private static final long STACK_BYTES = 256 * 1024;

    private final List<Connection> noted = new ArrayList<>(1);
    /** Virtual threads whose answers have arrived. */
    private final List<Thread> answered = new ArrayList<>(1);

    ReaderThread(Runnable work, String name) {
        super(null, work, name, STACK_BYTES);
        setDaemon(true);
    }

    /** True in a reader thread: a call that waits for an answer would deadlock here. */
    static boolean isCurrent() {
        return Thread.currentThread() instanceof ReaderThread;
    }

    /** Notes that this connection may have something to send. */
    void note(Connection connection) {
        if (!noted.contains(connection)) {
            noted.add(connection);
        }
    }

    /** Notes a virtual thread that is woken together with others. */
    void answered(Thread waiter) {
        answered.add(waiter);
    }

    /** Wakes the noted virtual threads. */
    void wakeAnswered(Waker waker, long now) {
        if (!answered.isEmpty()) {
            waker.wake(answered, now);
            answered.clear();
        }
    }

    /** Has the noted connections send. */
    void sendNoted() {
        while (!noted.isEmpty()) {
            noted.removeLast().sendNoted();
        }
    }
}

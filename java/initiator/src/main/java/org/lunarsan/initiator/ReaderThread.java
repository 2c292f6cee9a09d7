package org.lunarsan.initiator;

import java.util.ArrayList;
import java.util.List;

/**
 * The thread that reads one connection. What is asked for by a callback in it is not sent at once:
 * it leaves at the end of what was read together, in one write for each connection concerned; and
 * virtual threads that wait are woken then, together.
 *
 * <p>Threads: its own, but for the constructor.
 */
final class ReaderThread extends Thread {
    /** Enough for what runs here, callbacks of callers included. */
    private static final long STACK_BYTES = 256 * 1024;

    private final List<Connection> noted = new ArrayList<>(1);
    /** Virtual threads whose answers are there. */
    private final List<Thread> answered = new ArrayList<>(1);

    ReaderThread(Runnable work, String name) {
        super(null, work, name, STACK_BYTES);
        setDaemon(true);
    }

    /** Whether this is one: what waits for an answer here would wait for itself. */
    static boolean isCurrent() {
        return Thread.currentThread() instanceof ReaderThread;
    }

    /** This connection may have something to send. */
    void note(Connection connection) {
        if (!noted.contains(connection)) {
            noted.add(connection);
        }
    }

    /** This virtual thread is woken together with others. */
    void answered(Thread waiter) {
        answered.add(waiter);
    }

    /** Has them woken. */
    void wakeAnswered(Waker waker, long now) {
        if (!answered.isEmpty()) {
            waker.wake(answered, now);
            answered.clear();
        }
    }

    /** Has them send it. */
    void sendNoted() {
        while (!noted.isEmpty()) {
            noted.removeLast().sendNoted();
        }
    }
}

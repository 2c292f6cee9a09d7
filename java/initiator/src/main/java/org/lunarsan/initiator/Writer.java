package org.lunarsan.initiator;

import java.io.IOException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.lunarsan.iscsi.connection.InitiatorConnection;

/**
 * The second thread of a connection: continues sending when the socket was full, and handles
 * timeouts.
 *
 * <p>Threads: its own; methods for other threads are marked.
 */
final class Writer implements Runnable {
    /** Enough for a thread that runs no callbacks. */
    private static final long STACK_BYTES = 256 * 1024;
    /** Longest interval between two checks of the timeouts. */
    private static final long TICK_NANOS = 1_000_000_000L;
    private static final long TICK_NANOS_MIN = 1_000_000L;
    private static final long FAR_NANOS = Long.MAX_VALUE / 2;

    private final Connection connection;
    private final SocketChannel channel;
    private final InitiatorConnection machine;
    private final Sender sender;
    private final Aborts aborts;
    private final Thread thread;
    private final long commandNanos;
    private final long silenceNanos;
    /** Set if silent targets are pinged: then only a dead target stays silent. */
    private final boolean pings;
    /** Set while the socket is full. The thread that resets it sends from then on: this thread. */
    private final AtomicBoolean stalled = new AtomicBoolean();
    private volatile long stalledSince;
    /** Time until which the thread sleeps, unless it is woken. */
    private volatile long wakes;

    Writer(Connection connection, SocketChannel channel, InitiatorConnection machine,
            Sender sender, Aborts aborts, String name) {
        IscsiOptions options = connection.session().options();
        this.connection = connection;
        this.channel = channel;
        this.machine = machine;
        this.sender = sender;
        this.aborts = aborts;
        commandNanos = connection.commandNanos();
        silenceNanos = options.pingInterval.plus(options.pingTime).toNanos();
        pings = !options.pingInterval.isZero();
        thread = new Thread(null, this, name, STACK_BYTES);
        thread.setDaemon(true);
    }

    /** Returns the thread, to start and join it. */
    Thread thread() {
        return thread;
    }

    /** Wakes the thread, because there is something to send or to check. Threads: any. */
    void wake() {
        LockSupport.unpark(thread);
    }

    /** Wakes the thread if it would sleep until after this time. Threads: any. */
    void wakeBefore(long time) {
        if (time - wakes < 0) {
            wake();
        }
    }

    /**
     * Makes this thread continue sending, since the socket is full. Called by the holder of the
     * sender.
     */
    void stalled() {
        stalledSince = System.nanoTime();
        stalled.set(true);
        wake();
        if (connection.isOver()) {
            releaseBuffers();
        }
    }

    @Override
    public void run() {
        try {
            while (!connection.isOver()) {
                if (stalled.get()) {
                    continueSending();
                } else {
                    connection.send();
                }
                long now = System.nanoTime();
                aborts.watch(now);
                if (!stalled.get() && !connection.isOver()) {
                    // Until the wait is computed, anything that becomes due wakes this thread.
                    wakes = now + FAR_NANOS;
                    long wait = nanosToWait(now);
                    wakes = now + wait;
                    LockSupport.parkNanos(this, wait);
                }
            }
        } catch (RuntimeException | Error exception) {
            connection.failed(exception);
            connection.handleCompletions();
        } finally {
            releaseBuffers();
        }
    }

    /** Releases the buffers of a stalled round; nothing is sent any more. */
    private void releaseBuffers() {
        if (stalled.compareAndSet(true, false)) {
            sender.abandon();
            connection.handleCompletions();
        }
    }

    private long nanosToWait(long now) {
        long due = machine.nanosToWait(now);
        boolean idle = machine.isIdle();
        if (idle) {
            connection.tasks().trim();
        }
        long tick = Math.min(TICK_NANOS, commandNanos / 4);
        long wait = idle ? due : Math.min(due, tick);
        // A command that begins meanwhile does not wake this thread.
        wait = Math.min(wait, Math.max(commandNanos / 4, TICK_NANOS));
        return Math.max(wait, TICK_NANOS_MIN);
    }

    /** Sends until all is sent or the connection is over; no other thread sends meanwhile. */
    private void continueSending() {
        // True while this thread owns the round of sending, which it must then abandon after a
        // failure.
        boolean ownsRound = false;
        try (Selector selector = channel.provider().openSelector()) {
            channel.register(selector, SelectionKey.OP_WRITE);
            while (!connection.isOver()) {
                selector.select(stalledTickMillis());
                boolean takes = !selector.selectedKeys().isEmpty();
                selector.selectedKeys().clear();
                stalledSince = takes ? System.nanoTime() : stalledSince;
                watchStalled(System.nanoTime());
                if (takes && stalled.compareAndSet(true, false)) {
                    ownsRound = true;
                    boolean all = sender.send() == Sender.Sent.ALL;
                    ownsRound = false;
                    if (all) {
                        break;
                    }
                    stalled.set(true);
                }
            }
        } catch (IOException | ClosedSelectorException broken) {
            abandon(ownsRound);
            connection.broke(broken);
        } catch (RuntimeException | Error exception) {
            abandon(ownsRound);
            connection.failed(exception);
        }
        connection.handleCompletions();
    }

    private void abandon(boolean ownsRound) {
        if (ownsRound || stalled.compareAndSet(true, false)) {
            sender.abandon();
        }
    }

    private long stalledTickMillis() {
        long tick = Math.min(TICK_NANOS, Math.min(commandNanos, silenceNanos) / 4);
        return Math.max(tick, TICK_NANOS_MIN) / TICK_NANOS_MIN;
    }

    /** Checks timeouts while stalled: the machine's timers only run when something is sent. */
    private void watchStalled(long now) throws IOException {
        aborts.watch(now);
        Session session = connection.session();
        if (session.isOver()) {
            connection.note(session.why());
            throw new IOException("the session has ended");
        }
        if (now - stalledSince > silenceNanos) {
            throw new IOException("the target accepts no data");
        }
        if (pings && machine.nanosSilent(now) > silenceNanos) {
            throw new IOException("the target does not respond");
        }
    }
}

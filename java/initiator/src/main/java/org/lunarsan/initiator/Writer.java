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
 * The other thread of a connection: it goes on with a sending where the socket took no more, and
 * sees to what is due by time.
 *
 * <p>Threads: its own; what others may call says so.
 */
final class Writer implements Runnable {
    /** Enough for a thread that calls nothing of a caller. */
    private static final long STACK_BYTES = 256 * 1024;
    /** Between two looks at the clock, at most. */
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
    /** A silent target is pinged, so that only a dead one stays silent. */
    private final boolean pings;
    /** The socket takes no more. Who sets it back sends from then on: this thread. */
    private final AtomicBoolean stalled = new AtomicBoolean();
    private volatile long stalledSince;
    /** Until when it sleeps, unless it is woken. */
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

    /** To be started and waited for. */
    Thread thread() {
        return thread;
    }

    /** From any thread: there is something to send, or to look at. */
    void wake() {
        LockSupport.unpark(thread);
    }

    /** From any thread: the same, if it would sleep until after this time. */
    void wakeBefore(long time) {
        if (time - wakes < 0) {
            wake();
        }
    }

    /** From whoever holds the sender: the socket takes no more, and this thread goes on. */
    void stalled() {
        stalledSince = System.nanoTime();
        stalled.set(true);
        wake();
        if (connection.isOver()) {
            letGo();
        }
    }

    @Override
    public void run() {
        try {
            while (!connection.isOver()) {
                if (stalled.get()) {
                    goOn();
                } else {
                    connection.send();
                }
                long now = System.nanoTime();
                aborts.watch(now);
                if (!stalled.get() && !connection.isOver()) {
                    // Until it is known, whatever becomes due wakes it.
                    wakes = now + FAR_NANOS;
                    long wait = nanosToWait(now);
                    wakes = now + wait;
                    LockSupport.parkNanos(this, wait);
                }
            }
        } catch (RuntimeException | Error bug) {
            connection.failed(bug);
            connection.settle();
        } finally {
            letGo();
        }
    }

    /** What a sending that stalled still holds comes back; nothing is sent any more. */
    private void letGo() {
        if (stalled.compareAndSet(true, false)) {
            sender.abandon();
            connection.settle();
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

    /** Until all is out, or the connection is over; nobody else sends meanwhile. */
    private void goOn() {
        // Without it, what is held is the caller's who has just stalled, or lets it go.
        boolean mine = false;
        try (Selector selector = channel.provider().openSelector()) {
            channel.register(selector, SelectionKey.OP_WRITE);
            while (!connection.isOver()) {
                selector.select(stalledTickMillis());
                boolean takes = !selector.selectedKeys().isEmpty();
                selector.selectedKeys().clear();
                stalledSince = takes ? System.nanoTime() : stalledSince;
                watchStalled(System.nanoTime());
                if (takes && stalled.compareAndSet(true, false)) {
                    mine = true;
                    boolean all = sender.send() == Sender.Sent.ALL;
                    mine = false;
                    if (all) {
                        break;
                    }
                    stalled.set(true);
                }
            }
        } catch (IOException | ClosedSelectorException broken) {
            abandon(mine);
            connection.broke(broken);
        } catch (RuntimeException | Error bug) {
            abandon(mine);
            connection.failed(bug);
        }
        connection.settle();
    }

    private void abandon(boolean mine) {
        if (mine || stalled.compareAndSet(true, false)) {
            sender.abandon();
        }
    }

    private long stalledTickMillis() {
        long tick = Math.min(TICK_NANOS, Math.min(commandNanos, silenceNanos) / 4);
        return Math.max(tick, TICK_NANOS_MIN) / TICK_NANOS_MIN;
    }

    /** The machine's timers run where something is sent, and nothing is. */
    private void watchStalled(long now) throws IOException {
        aborts.watch(now);
        Session session = connection.session();
        if (session.isOver()) {
            connection.note(session.why());
            throw new IOException("the session is over");
        }
        if (now - stalledSince > silenceNanos) {
            throw new IOException("the target takes no data");
        }
        if (pings && machine.nanosSilent(now) > silenceNanos) {
            throw new IOException("the target says nothing");
        }
    }
}

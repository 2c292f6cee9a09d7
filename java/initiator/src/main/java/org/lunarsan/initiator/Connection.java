package org.lunarsan.initiator;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.connection.CloseReason;
import org.lunarsan.iscsi.connection.ConnectionEvent;
import org.lunarsan.iscsi.connection.ConnectionLimits;
import org.lunarsan.iscsi.connection.InitiatorConnection;
import org.lunarsan.iscsi.connection.Management;
import org.lunarsan.iscsi.connection.Request;
import org.lunarsan.iscsi.framing.Deframer;
import org.lunarsan.iscsi.framing.Framer;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.pdu.AsyncEvent;

/**
 * One connection of a session in full feature phase. Drives the protocol state machine over a
 * socket, with one thread that reads and one that writes and watches the timeouts. A thread that
 * submits a request sends it itself if no other thread is sending.
 *
 * <p>Threads: any.
 */
final class Connection {
    private static final long FAR_NANOS = Long.MAX_VALUE / 2;
    /** Limit of the text gathered in one exchange: the targets of a portal. */
    private static final int TEXT_BYTES_MAX = 1 << 20;

    private final Session session;
    private final int cid;
    private final SocketChannel channel;
    private final InitiatorConnection machine;
    private final Sender sender;
    private final Tasks tasks;
    private final Waker waker;
    private final Reader reader;
    private final Thread readerThread;
    private final Writer writer;
    private final long commandNanos;
    private final Aborts aborts;
    private final ReentrantLock eventLock = new ReentrantLock();
    /** Set when the target requests a logout or we log out. */
    private volatile boolean leaving;
    private volatile boolean over;
    /** Reason for the end, for messages. */
    private volatile Failure cause;

    /**
     * Creates a connection that has just logged in over {@code channel}; call {@link #start} next.
     */
    Connection(Session session, int cid, SocketChannel channel, Established established)
            throws IOException {
        IscsiOptions options = session.options();
        this.session = session;
        this.cid = cid;
        this.channel = channel;
        commandNanos = options.commandTime.isZero() ? FAR_NANOS
                : options.commandTime.toNanos();
        channel.configureBlocking(false);
        ConnectionLimits limits = new ConnectionLimits(options.pingInterval.toNanos(),
                options.pingTime.toNanos(), options.logoutTime.toNanos(),
                ConnectionLimits.REQUESTS_MAX, TEXT_BYTES_MAX);
        machine = new InitiatorConnection(System.nanoTime(), session.machine(), cid, established,
                limits, this::wake);
        sender = new Sender(channel, machine, new Framer(established.connection().digests()));
        Deframer deframer = new Deframer();
        deframer.expect(established.connection().digests(),
                established.connection().receiveDataSegmentBytesMax());
        waker = new Waker(new Holding());
        reader = new Reader(this, channel, machine, deframer);
        tasks = new Tasks(this, options.queueDepth);
        aborts = new Aborts(this, options.abortTime.toNanos());
        String name = "iscsi " + session.portal() + " #" + session.number() + "." + cid;
        readerThread = new ReaderThread(reader, name + " reader");
        writer = new Writer(this, channel, machine, sender, aborts, name + " writer");
    }

    void start() {
        readerThread.start();
        writer.thread().start();
    }

    Session session() {
        return session;
    }

    Tasks tasks() {
        return tasks;
    }

    Waker waker() {
        return waker;
    }

    int cid() {
        return cid;
    }

    /** True while the connection accepts requests. */
    boolean isUp() {
        return !leaving && !over;
    }

    /** True when the connection is lost or closed. */
    boolean isOver() {
        return over;
    }

    /** True when all its requests have completed or are about to complete. */
    boolean isClosed() {
        return machine.isClosed();
    }

    boolean isIdle() {
        return machine.isIdle();
    }

    /** Returns the reason why the connection is over. */
    Failure cause() {
        Failure known = cause;
        return known != null ? known : Failure.of(Kind.SESSION_LOST,
                "the connection to " + session.portal() + " has ended");
    }

    /** Time limit of a command in nanoseconds. */
    long commandNanos() {
        return commandNanos;
    }

    /** Returns the time at which a command that begins now is overdue. */
    long deadline() {
        return System.nanoTime() + commandNanos;
    }

    /**
     * Submits any request; {@link #handleCompletions} delivers its completion. Returns false if the
     * request was not accepted; {@link Request#failure} holds the reason.
     */
    boolean submit(Request request) {
        if (ReaderThread.isCurrent()) {
            return machine.submit(request);
        }
        // Virtual threads that were woken together send together; other threads do not wait for
        // them.
        boolean sends = sender.acquire()
                || !Thread.currentThread().isVirtual() && waker.takeOver();
        boolean taken = machine.submit(request);
        if (sends) {
            sendAcquired();
        } else {
            send();
        }
        return taken;
    }

    /**
     * Replaces the data of a task by {@code copy}, which begins at {@code shift} of the caller's
     * buffer.
     */
    void moveDataOut(Task task, ByteBuffer copy, int shift) {
        sender.moveDataOut(task, copy, shift);
    }

    /** Discards data that arrives for a task from now on. */
    void discardDataIn(Task task) {
        reader.discard(task);
    }

    /** Called when the machine may have something to send, possibly with its lock held. */
    void wake() {
        if (Thread.currentThread() instanceof ReaderThread thread) {
            thread.note(this);
        } else if (!sender.again()) {
            writer.wake();
        }
    }

    /** Sends all that is due, unless another thread is sending. */
    void send() {
        do {
            if (sender.acquire()) {
                sendAcquired();
                return;
            }
        } while (!sender.again());
    }

    private void sendAcquired() {
        try {
            if (sender.send() == Sender.Sent.STALLED) {
                writer.stalled();
            }
        } catch (IOException broken) {
            sender.abandon();
            broke(broken);
        } catch (RuntimeException | Error exception) {
            // Waiting threads learn of the failure from their completions; this thread may be
            // another caller's.
            sender.abandon();
            failed(exception);
        }
        handleCompletions();
    }

    /** The sender as {@link Waker} uses it. */
    private final class Holding implements Waker.SenderState {
        @Override
        public boolean hold() {
            return sender.acquire();
        }

        @Override
        public void release() {
            sendAcquired();
        }
    }

    /**
     * Sends the requests that callbacks in a reader have submitted, and sets the writer's timer.
     */
    void sendNoted() {
        if (waker.takeOver()) {
            sendAcquired();
        } else {
            send();
        }
        long now = System.nanoTime();
        long due = machine.nanosToWait(now);
        if (due != InitiatorConnection.FOREVER) {
            writer.wakeBefore(now + due);
        }
    }

    /** Takes events and completed requests from the machine, and notifies their owners. */
    void handleCompletions() {
        takeEvents();
        for (Request request = machine.pollCompleted(); request != null;
                request = machine.pollCompleted()) {
            if (request.failure() != null) {
                // Take the cause of a loss first: a caller that sees the lost request must also
                // find its cause.
                takeEvents();
            }
            cameBack(request);
        }
    }

    /** Handles pending events, one thread at a time. */
    private void takeEvents() {
        eventLock.lock();
        try {
            for (ConnectionEvent event = machine.pollEvent(); event != null;
                    event = machine.pollEvent()) {
                on(event);
            }
        } finally {
            eventLock.unlock();
        }
    }

    private void cameBack(Request request) {
        switch (request) {
            case Task task -> cameBack(task);
            case Management management -> aborts.cameBack(management);
            default -> session.cameBack(request);
        }
    }

    private void cameBack(Task task) {
        session.recordFindings(this, task);
        if (task.comeBack()) {
            return;
        }
        if (ReaderThread.isCurrent()) {
            task.runCompletion();
        } else {
            // The completion must not run in the thread that happened to send.
            Thread.startVirtualThread(task::runCompletion);
        }
    }

    private void on(ConnectionEvent event) {
        switch (event) {
            case ConnectionEvent.Asynchronous message -> {
                Log.info(() -> session.portal() + " reports "
                        + AsyncEvent.name(message.event()));
                leaving |= message.event() == AsyncEvent.LOGOUT_REQUESTED;
            }
            case ConnectionEvent.Closed closed -> end(closed.reason());
        }
    }

    private void end(CloseReason reason) {
        String portal = session.portal();
        String what = switch (reason) {
            case CloseReason.LoggedOut logout -> "logged out from " + portal;
            case CloseReason.Violated violated ->
                portal + " violated the protocol: " + violated.violation().describe();
            case CloseReason.TimedOut late -> portal + " did not answer in time: " + late.what();
            case CloseReason.PeerClosed closed -> portal + " closed the connection";
            case CloseReason.Dropped dropped -> "the session with " + portal + " was dropped";
        };
        Failure known = reason instanceof CloseReason.Dropped ? session.causeOrNull() : null;
        note(known != null ? known : Failure.of(Kind.SESSION_LOST, what));
        close();
        session.connectionOver(this, reason);
    }

    synchronized void note(Failure why) {
        cause = cause == null ? why : cause;
    }

    /** Handles a failure of the socket. */
    void broke(Exception broken) {
        note(Failure.of(Kind.SESSION_LOST, "the connection to " + session.portal()
                + " failed: " + broken.getMessage(), broken));
        machine.onLost();
    }

    /**
     * Handles an internal error of this initiator: the state of the connection cannot be
     * trusted any more.
     */
    void failed(Throwable bug) {
        note(Failure.of(Kind.SESSION_LOST, "internal error of this initiator: " + bug, bug));
        Log.warn(() -> session.portal() + ": internal error of this initiator: " + bug, bug);
        machine.onLost();
        over = true;
        close();
    }

    /** Ends the connection for this reason. */
    void drop(Failure why) {
        note(why);
        machine.onLost();
        send();
        handleCompletions();
    }

    private void close() {
        over = true;
        try {
            channel.close();
        } catch (IOException ignored) {
            // The connection is over in any case.
        }
        reader.wakeUp();
        writer.wake();
        tasks.close();
    }

    /** Called when the reader has stopped and its pending requests have completed. */
    void readerStopped(Throwable why) {
        if (why instanceof IOException broken && !over) {
            String portal = session.portal();
            note(broken instanceof EOFException
                    ? Failure.of(Kind.SESSION_LOST, portal + " closed the connection")
                    : Failure.of(Kind.SESSION_LOST, "the connection to " + portal + " failed: "
                            + broken.getMessage(), broken));
        }
        handleCompletions();
        close();
    }

    /** Waits until both threads have ended. */
    void join(long nanos) {
        Thread writes = writer.thread();
        if (Thread.currentThread() != readerThread && Thread.currentThread() != writes) {
            UninterruptedWaits.join(readerThread, nanos);
            UninterruptedWaits.join(writes, nanos);
        }
    }
}

package org.lunarsan.initiator;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongConsumer;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.connection.CloseReason;
import org.lunarsan.iscsi.connection.Logout;
import org.lunarsan.iscsi.connection.Request;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.login.LoginException;
import org.lunarsan.iscsi.pdu.LogoutReason;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.session.LoginNumbers;
import org.lunarsan.iscsi.text.ConnectionParameters;

/**
 * One session, from its login to its end, over one or more connections. Each command goes to the
 * connection with the least pending data, and stays there (RFC 7143 §4.2.5.1).
 *
 * <p>A connection that is lost with pending commands ends the session, because at
 * ErrorRecoveryLevel 0 their outcome is unknown until a new session has replaced this one (RFC 7143
 * §7.1.4.4). A connection that was idle is made again while the session continues.
 *
 * <p>Threads: any.
 */
final class Session {
    /** CID of the leading connection. */
    private static final int LEADING = 0;
    /** CmdSN of the leading login. */
    private static final int CMD_SN_FIRST = 1;
    /** Interval at which pending commands are checked: doubled each time, up to a limit. */
    private static final long ANSWER_POLL_NANOS_MIN = 20_000;
    private static final long ANSWER_POLL_NANOS_MAX = 1_000_000;
    /** Time for which an interrupted thread waits for the answer to a logout. */
    static final long HASTY_NANOS = 250_000_000L;
    private static final byte SYNCHRONIZE_CACHE_16 = (byte) 0x91;

    private final TargetConnector route;
    private final long number;
    private final String portal;
    private final InetSocketAddress address;
    private final UnitAttentions attentions;
    private final InitiatorSession machine;
    private final CopyOnWriteArrayList<Connection> connections = new CopyOnWriteArrayList<>();
    private final Map<Request, CompletableFuture<Request>> asked = new ConcurrentHashMap<>();
    /** Set while a thread makes connections again. */
    private final AtomicBoolean joining = new AtomicBoolean();
    /** Failure of the connection lost last, until that thread has seen it. */
    private final AtomicReference<Failure> lost = new AtomicReference<>();
    private final AtomicInteger nextCid = new AtomicInteger(LEADING);
    private volatile Established established;
    private volatile boolean over;
    /** Number of connections when the first of them was lost; 0: none was lost. */
    private final AtomicInteger lostAmong = new AtomicInteger();
    /** Time of the end on the clock of {@link System#nanoTime}, once the session is over. */
    private volatile long overSince;
    private volatile boolean loggingOut;
    /** Time at which the last further connection began to log in, on the same clock. */
    private volatile long joinedSince;
    private volatile boolean hasBeenJoined;
    /** Set when a connection was lost with pending commands: the target's answers are unknown. */
    private volatile boolean lostAnswers;
    private volatile Failure cause;

    private Session(TargetConnector route, long number, String portal, InetSocketAddress address,
            UnitAttentions attentions) {
        this.route = route;
        this.number = number;
        this.portal = portal;
        this.address = address;
        this.attentions = attentions;
        this.machine = new InitiatorSession(route.isid(), CMD_SN_FIRST);
    }

    /** Logs in at this address, with one connection. */
    static Session open(TargetConnector route, long number, Login login, String portal,
            InetSocketAddress address, UnitAttentions attentions) throws Failure, LoginException {
        Session session = new Session(route, number, portal, address, attentions);
        session.join(login);
        return session;
    }

    /** Adds connections, up to the configured number and the target's limit; fewer are no error. */
    void addConnections(long until) {
        for (int have = connections.size(); have < connectionsMax() && !over; have++) {
            try {
                join(new Login(portal, until));
            } catch (Failure | LoginException refused) {
                if (joinFailed(refused.getMessage()) && !over && route.quirks().tellsOfFewer()) {
                    Log.warn(() -> portal + ": the session continues with one connection less: "
                            + refused.getMessage());
                }
                return;
            }
        }
    }

    private int connectionsMax() {
        int allowed = Math.max(established.session().maxConnections(), 1);
        return Math.min(route.quirks().connections(), allowed);
    }

    /** Records a further connection that was refused or lost. True if another is to be tried. */
    private boolean joinFailed(String why) {
        return route.quirks().noteRetry(portal, connections.size(), why, System.nanoTime());
    }

    /** Logs one connection in. */
    private void join(Login login) throws Failure, LoginException {
        int cid = nextCid.getAndIncrement();
        AtomicReference<Connection> made = new AtomicReference<>();
        LoginNumbers numbers = machine.open(cid, () -> wake(made.get())).orElseThrow(() ->
                Failure.of(Kind.LOGIN,
                        "the session with " + portal + " accepts no further connection"));
        if (established != null) {
            joinedSince = System.nanoTime();
            hasBeenJoined = true;
        }
        SocketChannel channel = null;
        try {
            channel = login.connect(address);
            Established joined = login.run(channel, route.loginOptions(cid, numbers));
            Connection connection = new Connection(this, cid, channel, capped(joined));
            if (joined.tsih() == 0) {
                Log.warn(() -> portal + ": the target gave the discovery session no TSIH (RFC 7143"
                        + " §11.13.3); the session continues");
            }
            established = established == null ? joined : established;
            made.set(connection);
            connections.add(connection);
            connection.start();
        } catch (Failure | LoginException | RuntimeException refused) {
            Login.close(channel);
            machine.closed(cid, ConnectionEnding.NOT_JOINED);
            throw refused;
        } catch (IOException broken) {
            Login.close(channel);
            machine.closed(cid, ConnectionEnding.NOT_JOINED);
            throw Login.unreachable(portal, broken);
        }
    }

    private static void wake(Connection connection) {
        if (connection != null) {
            connection.wake();
        }
    }

    /** Limits our data segments to the length of a chunk, whatever the target accepts. */
    private static Established capped(Established made) {
        ConnectionParameters negotiated = made.connection();
        int most = Math.min(negotiated.sendDataSegmentBytesMax(), Chunks.SEGMENT_BYTES_MAX);
        return new Established(made.tsih(), made.session(),
                new ConnectionParameters(negotiated.digests(), most,
                        negotiated.receiveDataSegmentBytesMax()),
                made.expStatSn(), made.expCmdSn(), made.maxCmdSn(), made.portalGroupTag(),
                made.targetAlias());
    }

    /**
     * Takes a task on the connection with the least pending data; null: no connection accepts any
     * now.
     */
    Task take(long dataBytes) {
        for (Connection chosen = choose(); chosen != null; chosen = choose()) {
            Task task = chosen.tasks().take(dataBytes);
            if (task != null) {
                return task;
            }
        }
        return null;
    }

    /** Takes a task as {@link #take} does, without waiting. */
    Task tryTake(long dataBytes) {
        Connection chosen = choose();
        return chosen == null ? null : chosen.tasks().tryTake(dataBytes);
    }

    private Connection choose() {
        if (over) {
            return null;
        }
        Connection best = null;
        long least = Long.MAX_VALUE;
        for (Connection connection : connections) {
            long outstanding = connection.tasks().outstandingBytes();
            if (connection.isUp() && outstanding < least) {
                best = connection;
                least = outstanding;
            }
        }
        return best;
    }

    /** Submits any request but a command; the future completes when the request does. */
    CompletableFuture<Request> ask(Request request) throws Failure {
        Connection connection = choose();
        if (connection == null) {
            throw why().notSent();
        }
        CompletableFuture<Request> answer = new CompletableFuture<>();
        asked.put(request, answer);
        if (!connection.submit(request)) {
            asked.remove(request);
            throw Failure.of(Kind.REFUSED, request.failure().what());
        }
        return answer;
    }

    void cameBack(Request request) {
        CompletableFuture<Request> answer = asked.remove(request);
        if (answer != null) {
            answer.complete(request);
        }
    }

    /** Processes a completed task of a connection: records its findings about session and unit. */
    void recordFindings(Connection connection, Task task) {
        var failure = task.failure();
        if (failure == null) {
            if (Outcome.isCheckCondition(task)) {
                Sense sense = Outcome.sense(task);
                attentions.record(sense, number);
                if (task.cdb()[0] == SYNCHRONIZE_CACHE_16 && !sense.isDeferred()) {
                    attentions.recordFailedFlush(sense);
                }
            }
        } else if (failure.kind() == org.lunarsan.iscsi.connection.Failure.Kind.LOST) {
            Failure why = connection.cause();
            end(why, now -> {
                if (hadSeveral() && !loggingOut) {
                    route.quirks().noteLoss(portal, why.getMessage(), now);
                }
            });
        }
    }

    /** True if there were several connections when the first was lost, or are now. */
    private boolean hadSeveral() {
        return Math.max(lostAmong.get(), connections.size()) > 1;
    }

    /** Handles the end of a connection. */
    void connectionOver(Connection connection, CloseReason reason) {
        // Check before the connection is removed: its pending requests may not have completed yet.
        if (!underWay(List.of(connection)).isEmpty()) {
            lostAnswers = true;
        }
        lostAmong.compareAndSet(0, connections.size());
        connections.remove(connection);
        if (connections.isEmpty() || machine.ending().isPresent()) {
            Failure why = connection.cause();
            end(why, now -> {
                if (loggingOut) {
                    return;
                }
                if (lostAnswers && hadSeveral()) {
                    // Record the loss before any of the commands completes.
                    route.quirks().noteLoss(portal, why.getMessage(), now);
                } else if (hasBeenJoined && reason instanceof CloseReason.PeerClosed) {
                    route.quirks().noteJoinedEnd(portal, now - joinedSince, why.getMessage(), now);
                }
            });
        } else if (!over && !loggingOut && !(reason instanceof CloseReason.LoggedOut)) {
            Log.info(() -> portal + ": connection " + connection.cid() + " is re-established: "
                    + connection.cause().getMessage());
            lost.set(connection.cause());
            lostAmong.set(0);
            startJoining();
        }
    }

    /**
     * Waits until all commands pending now have completed, and any unit attentions in their answers
     * are recorded: another connection may have delivered newer answers earlier. Commands end by
     * their answer, the command time or the end of the session.
     *
     * @return false if some answers are lost
     */
    boolean awaitPendingAnswers() {
        long pause = ANSWER_POLL_NANOS_MIN;
        for (Tasks.Use each : underWay(connections)) {
            while (each.task().isUnderWay(each.use())) {
                UninterruptedWaits.pause(pause);
                pause = Math.min(2 * pause, ANSWER_POLL_NANOS_MAX);
            }
        }
        return !lostAnswers;
    }

    private static List<Tasks.Use> underWay(List<Connection> connections) {
        List<Tasks.Use> uses = new ArrayList<>();
        connections.forEach(connection -> connection.tasks().addUnderWay(uses));
        return uses;
    }

    private void startJoining() {
        if (joining.compareAndSet(false, true)) {
            Thread.ofVirtual().name("iscsi " + portal + " joins").start(() -> {
                joinAgain();
                joining.set(false);
                if (lost.get() != null && wantsMore()) {
                    startJoining();
                }
            });
        }
    }

    /** Makes connections until the limit is reached or the target has refused too often. */
    private void joinAgain() {
        Backoff backoff = new Backoff(System.nanoTime());
        do {
            UninterruptedWaits.pause(backoff.next());
            // Connections lost together count as one failure; those lost with the session do not
            // count.
            Failure gone = lost.getAndSet(null);
            if (over || gone != null && !joinFailed(gone.getMessage())) {
                return;
            }
            try {
                if (wantsMore()) {
                    join(new Login(portal, System.nanoTime() + options().loginTime.toNanos()));
                }
            } catch (Failure | LoginException refused) {
                Log.debug(() -> portal + ": " + refused.getMessage());
                if (over || !joinFailed(refused.getMessage())) {
                    return;
                }
            }
        } while (wantsMore());
    }

    private boolean wantsMore() {
        return !over && !loggingOut && connections.size() < connectionsMax();
    }

    /** Ends the session without a logout, unless it is over. */
    void end(Failure why) {
        end(why, now -> { });
    }

    /**
     * Ends the session without a logout, unless it is over. Runs {@code note} first, which records
     * conclusions about the target: once the session is over, the next login may begin.
     */
    private void end(Failure why, LongConsumer note) {
        synchronized (this) {
            if (over) {
                return;
            }
            cause = why;
            overSince = System.nanoTime();
            note.accept(overSince);
            over = true;
        }
        machine.end();
    }

    /**
     * Logs out and waits up to {@code nanos} for the answer; the session is over then in any case.
     */
    void logOut(long nanos) {
        loggingOut = true;
        long until = System.nanoTime() + nanos;
        try {
            UninterruptedWaits.get(ask(new Logout(LogoutReason.CLOSE_SESSION, LEADING)), nanos);
        } catch (Failure exception) {
            Log.debug(() -> portal + ": no logout: " + exception.getMessage());
        }
        List<Connection> left = List.copyOf(connections);
        Failure why = Failure.of(Kind.SESSION_LOST, "logged out from " + portal);
        for (Connection connection : left) {
            connection.drop(why);
        }
        end(why);
        for (Connection connection : left) {
            connection.join(Math.max(until - System.nanoTime(), nanos / 2));
        }
    }

    /** Logs out a session that is not needed; an interrupted thread waits only a short time. */
    void leave() {
        if (Thread.currentThread().isInterrupted()) {
            leaveInHaste();
        } else {
            logOut(options().logoutTime.toNanos());
        }
    }

    void leaveInHaste() {
        logOut(Math.min(HASTY_NANOS, options().logoutTime.toNanos()));
    }

    /** Number of connections that accept commands. */
    int connections() {
        return (int) connections.stream().filter(Connection::isUp).count();
    }

    /** True when no command is pending. */
    boolean isIdle() {
        return connections.stream().allMatch(each -> each.tasks().outstandingBytes() == 0);
    }

    boolean isOver() {
        return over;
    }

    /**
     * Returns the time of the end on the clock of {@link System#nanoTime}; the session must be
     * over.
     */
    long overSince() {
        return overSince;
    }

    /** Returns the reason for the end. */
    Failure why() {
        Failure known = cause;
        return known != null ? known
                : Failure.of(Kind.SESSION_LOST,
                        "the session with " + portal + " accepts no commands at the moment");
    }

    Failure causeOrNull() {
        return cause;
    }

    Established established() {
        return established;
    }

    /** Returns the portal group that was reached. */
    OptionalInt group() {
        return established.portalGroupTag();
    }

    InitiatorSession machine() {
        return machine;
    }

    IscsiOptions options() {
        return route.options();
    }

    /** Returns the portal that was connected to, as it was named. */
    String portal() {
        return portal;
    }

    /** Returns the session's number among those of its device. */
    long number() {
        return number;
    }
}

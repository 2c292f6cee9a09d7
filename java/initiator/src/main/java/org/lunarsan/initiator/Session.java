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
import org.lunarsan.iscsi.session.Ending;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.session.LoginNumbers;
import org.lunarsan.iscsi.text.ConnectionParameters;

/**
 * One session, from its login to its end, over one or more connections. Each command goes to the
 * connection with the least data under way, and stays there (RFC 7143 §4.2.5.1).
 *
 * <p>A connection that is lost with commands under way takes the session along, for at
 * ErrorRecoveryLevel 0 nobody knows what becomes of them before a new session has taken the place
 * of this one (RFC 7143 §7.1.4.4). One that had nothing to do is made again while the session goes
 * on.
 *
 * <p>Threads: any.
 */
final class Session {
    /** CID of the leading connection. */
    private static final int LEADING = 0;
    /** CmdSN of the leading login. */
    private static final int CMD_SN_FIRST = 1;
    /** Between two looks whether commands have come back: doubled each time, up to a limit. */
    private static final long HEARING_NANOS_MIN = 20_000;
    private static final long HEARING_NANOS_MAX = 1_000_000;
    /** So long a thread that is interrupted waits for the answer to a logout. */
    static final long HASTY_NANOS = 250_000_000L;
    private static final byte SYNCHRONIZE_CACHE_16 = (byte) 0x91;

    private final Route route;
    private final long number;
    private final String portal;
    private final InetSocketAddress address;
    private final UnitAttentions attentions;
    private final InitiatorSession machine;
    private final CopyOnWriteArrayList<Connection> connections = new CopyOnWriteArrayList<>();
    private final Map<Request, CompletableFuture<Request>> asked = new ConcurrentHashMap<>();
    /** A thread makes connections again. */
    private final AtomicBoolean joining = new AtomicBoolean();
    /** Why the last of several connections went, until that thread has looked. */
    private final AtomicReference<Failure> lost = new AtomicReference<>();
    private final AtomicInteger nextCid = new AtomicInteger(LEADING);
    private volatile Established established;
    private volatile boolean over;
    /** How many connections there were when the first of them was lost; 0: none was. */
    private final AtomicInteger lostAmong = new AtomicInteger();
    /** On the clock of {@link System#nanoTime}, once it is over. */
    private volatile long overSince;
    private volatile boolean loggingOut;
    /** When a further connection began last to log in, on the same clock, once one has. */
    private volatile long joinedSince;
    private volatile boolean hasBeenJoined;
    /** A connection went with commands under way: what the target said to them is not known. */
    private volatile boolean lostAnswers;
    private volatile Failure cause;

    private Session(Route route, long number, String portal, InetSocketAddress address,
            UnitAttentions attentions) {
        this.route = route;
        this.number = number;
        this.portal = portal;
        this.address = address;
        this.attentions = attentions;
        this.machine = new InitiatorSession(route.isid(), CMD_SN_FIRST);
    }

    /** Logs in at this address, with one connection. */
    static Session open(Route route, long number, Login login, String portal,
            InetSocketAddress address, UnitAttentions attentions) throws Failure, LoginException {
        Session session = new Session(route, number, portal, address, attentions);
        session.join(login);
        return session;
    }

    /** Adds connections, as many as are wanted and the target bears; fewer are no error. */
    void addConnections(long until) {
        for (int have = connections.size(); have < connectionsMax() && !over; have++) {
            try {
                join(new Login(portal, until));
            } catch (Failure | LoginException refused) {
                if (joinFailed(refused.getMessage()) && !over && route.quirks().tellsOfFewer()) {
                    Log.warn(() -> portal + ": one connection less: " + refused.getMessage());
                }
                return;
            }
        }
    }

    private int connectionsMax() {
        int allowed = Math.max(established.session().maxConnections(), 1);
        return Math.min(route.quirks().connections(), allowed);
    }

    /** A further connection was refused or lost; whether another is to be tried. */
    private boolean joinFailed(String why) {
        return route.quirks().noteRetry(portal, connections.size(), why, System.nanoTime());
    }

    /** One more connection. */
    private void join(Login login) throws Failure, LoginException {
        int cid = nextCid.getAndIncrement();
        AtomicReference<Connection> made = new AtomicReference<>();
        LoginNumbers numbers = machine.open(cid, () -> wake(made.get())).orElseThrow(() ->
                Failure.of(Kind.LOGIN, "the session with " + portal + " takes no connection"));
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
                        + " §11.13.3); the session goes on");
            }
            established = established == null ? joined : established;
            made.set(connection);
            connections.add(connection);
            connection.start();
        } catch (Failure | LoginException | RuntimeException refused) {
            Login.close(channel);
            machine.closed(cid, Ending.NOT_JOINED);
            throw refused;
        } catch (IOException broken) {
            Login.close(channel);
            machine.closed(cid, Ending.NOT_JOINED);
            throw Login.unreachable(portal, broken);
        }
    }

    private static void wake(Connection connection) {
        if (connection != null) {
            connection.wake();
        }
    }

    /** A data segment of ours is never longer than a chunk, whatever the target would take. */
    private static Established capped(Established made) {
        ConnectionParameters told = made.connection();
        int most = Math.min(told.sendDataSegmentBytesMax(), Chunks.SEGMENT_BYTES_MAX);
        return new Established(made.tsih(), made.session(),
                new ConnectionParameters(told.digests(), most, told.receiveDataSegmentBytesMax()),
                made.expStatSn(), made.expCmdSn(), made.maxCmdSn(), made.portalGroupTag(),
                made.targetAlias());
    }

    /** A place for a command on the connection with the least to do; null: it takes nothing now. */
    Task take(long dataBytes) {
        for (Connection chosen = choose(); chosen != null; chosen = choose()) {
            Task task = chosen.tasks().take(dataBytes);
            if (task != null) {
                return task;
            }
        }
        return null;
    }

    /** Likewise, without waiting. */
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

    /** Asks for anything but a command; completes when it came back. */
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

    /** A task of one of its connections came back: notes what it says of the session and unit. */
    void judge(Connection connection, Task task) {
        var failure = task.failure();
        if (failure == null) {
            if (Outcome.isCheckCondition(task)) {
                Sense sense = Outcome.sense(task);
                attentions.see(sense, number);
                if (task.cdb()[0] == SYNCHRONIZE_CACHE_16 && !sense.isDeferred()) {
                    attentions.seeFlush(sense);
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

    /** Whether it had several connections when the first one was lost, or has now. */
    private boolean hadSeveral() {
        return Math.max(lostAmong.get(), connections.size()) > 1;
    }

    /** A connection is gone. */
    void connectionOver(Connection connection, CloseReason reason) {
        // Before it is no longer found: what it had in hand may not have come back yet.
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
                    // Before any of its commands came back.
                    route.quirks().noteLoss(portal, why.getMessage(), now);
                } else if (hasBeenJoined && reason instanceof CloseReason.PeerClosed) {
                    route.quirks().noteJoinedEnd(portal, now - joinedSince, why.getMessage(), now);
                }
            });
        } else if (!over && !loggingOut && !(reason instanceof CloseReason.LoggedOut)) {
            Log.info(() -> portal + ": connection " + connection.cid() + " is made again: "
                    + connection.cause().getMessage());
            lost.set(connection.cause());
            lostAmong.set(0);
            startJoining();
        }
    }

    /**
     * Waits until all that is under way now has come back, and so has said what it had to say of
     * the unit: another connection may have brought something newer earlier. Commands end by their
     * answer, the command time or the end of the session.
     *
     * @return false: some answers are lost
     */
    boolean hearOut() {
        long pause = HEARING_NANOS_MIN;
        for (Tasks.Use each : underWay(connections)) {
            while (each.task().isUnderWay(each.use())) {
                Waits.pause(pause);
                pause = Math.min(2 * pause, HEARING_NANOS_MAX);
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

    /** Makes connections until there are as many as before, or the target has refused enough. */
    private void joinAgain() {
        Backoff backoff = new Backoff(System.nanoTime());
        do {
            Waits.pause(backoff.next());
            // Those that went together are one failure; with the session they are none.
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

    /** Ends it without a logout, unless it is over. */
    void end(Failure why) {
        end(why, now -> { });
    }

    /**
     * Ends it without a logout, unless it is over. What the loss says of the target is noted
     * first: as soon as it is over, the next login may begin.
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

    /** Logs out, and waits at most so long for the answer; then it is over in any case. */
    void logOut(long nanos) {
        loggingOut = true;
        long until = System.nanoTime() + nanos;
        try {
            Waits.get(ask(new Logout(LogoutReason.CLOSE_SESSION, LEADING)), nanos);
        } catch (Failure gone) {
            Log.debug(() -> portal + ": no logout: " + gone.getMessage());
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

    /** Logs out one that is of no use; a thread that is interrupted does so in haste. */
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

    /** How many connections take commands. */
    int connections() {
        return (int) connections.stream().filter(Connection::isUp).count();
    }

    /** Nothing is under way. */
    boolean isIdle() {
        return connections.stream().allMatch(each -> each.tasks().outstandingBytes() == 0);
    }

    boolean isOver() {
        return over;
    }

    /** When it ended, on the clock of {@link System#nanoTime}; it has to be over. */
    long overSince() {
        return overSince;
    }

    /** Why it is over. */
    Failure why() {
        Failure known = cause;
        return known != null ? known
                : Failure.of(Kind.SESSION_LOST, "the session with " + portal + " takes no command");
    }

    Failure causeOrNull() {
        return cause;
    }

    Established established() {
        return established;
    }

    /** The portal group that was reached. */
    OptionalInt group() {
        return established.portalGroupTag();
    }

    InitiatorSession machine() {
        return machine;
    }

    IscsiOptions options() {
        return route.options();
    }

    /** The portal that was connected to, as it was named. */
    String portal() {
        return portal;
    }

    /** Its number among those of its device. */
    long number() {
        return number;
    }
}

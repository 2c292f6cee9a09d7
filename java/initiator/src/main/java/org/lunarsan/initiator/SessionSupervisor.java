package org.lunarsan.initiator;

import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.initiator.IscsiException.Kind;

/**
 * The successive sessions of one device. Re-establishes a lost session while callers wait.
 *
 * <p>Threads: any. Logins run in a thread of their own, which callers cannot interrupt; only the
 * thread of the first login ends together with its caller.
 */
final class SessionSupervisor {
    /** Added to the login time of the first login, for a name server that does not answer. */
    private static final long NAME_SERVER_NANOS = 5_000_000_000L;
    private static final long SECOND_NANOS = 1_000_000_000L;
    /** Time for an interrupted login to end: its socket is closed, its session logged out. */
    private static final long CANCEL_NANOS = 4 * Session.HASTY_NANOS;

    private final TargetConnector route;
    private final UnitAttentions attentions;
    private final UncertainWrites uncertainWrites;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    /** The last session; it may be over. */
    private volatile Session session;
    /** Portal group of every session. */
    private OptionalInt group = OptionalInt.empty();
    /** Set when the target rejects the credentials of this initiator. */
    private Failure refused;
    /** Set after the logout; no session follows. */
    private volatile boolean closed;
    /** True while a thread logs in; callers wait until {@code wantedUntil}. */
    private boolean working;
    private long wantedUntil;
    private long number;
    /** Number of logins since the last session was lost, and failure of the last login. */
    private int tries;
    private Failure failure;
    /** Seconds between the loss and the first of these logins. */
    private int waitsSeconds;
    /** Earliest time of that login, on the clock of {@link System#nanoTime}. */
    private long triesFrom;

    SessionSupervisor(TargetConnector route, UnitAttentions attentions,
            UncertainWrites uncertainWrites) {
        this.route = route;
        this.attentions = attentions;
        this.uncertainWrites = uncertainWrites;
    }

    /**
     * Establishes the first session. A failed login is not retried; an interrupt ends the login.
     */
    Session connect() throws Failure {
        CompletableFuture<Session> made = new CompletableFuture<>();
        number = 1;
        Thread login = Thread.ofVirtual().name("iscsi " + route.url().portal() + " login")
                .start(() -> logInFirst(made));
        try {
            UninterruptedWaits.getInterruptibly(
                    made, route.options().loginTime.toNanos() + NAME_SERVER_NANOS);
        } catch (Failure interrupted) {
            cancel(made, login, interrupted);
            throw interrupted;
        }
        made.completeExceptionally(Failure.of(Kind.CONNECT, "the login to " + route.url().portal()
                + " did not complete"));
        if (made.isCompletedExceptionally()) {
            throw thrown(made.exceptionNow());
        }
        session = made.join();
        group = session.group();
        return session;
    }

    private void logInFirst(CompletableFuture<Session> made) {
        try {
            Session first = route.logIn(1, TargetConnector.Follows.NOTHING, attentions);
            if (!made.complete(first)) {
                first.leave();
            }
        } catch (Failure | RuntimeException | Error failed) {
            made.completeExceptionally(failed);
        }
    }

    /** Cancels a login, and logs its session out if it has just succeeded. */
    private static void cancel(CompletableFuture<Session> made, Thread login, Failure why) {
        if (!made.completeExceptionally(why) && !made.isCompletedExceptionally()) {
            made.join().leave();
        }
        login.interrupt();
        UninterruptedWaits.join(login, CANCEL_NANOS);
    }

    private static Failure thrown(Throwable why) {
        return why instanceof Failure known ? known
                : Failure.of(Kind.LOGIN, "internal error of this initiator: " + why, why);
    }

    TargetConnector route() {
        return route;
    }

    /** Returns the session if it is not lost, else null; does not wait. */
    Session now() {
        Session last = session;
        return closed || last == null || last.isOver() ? null : last;
    }

    /** Returns the last session, which may be over. */
    Session last() {
        return session;
    }

    boolean isClosed() {
        return closed;
    }

    /** Returns a session that is not lost; waits until the deadline. */
    Session await(RetryDeadline deadline) throws Failure {
        while (true) {
            Session now = now();
            if (now != null) {
                return now;
            }
            awaitOther(deadline);
        }
    }

    private void awaitOther(RetryDeadline deadline) throws Failure {
        Failure loss;
        lock.lock();
        try {
            if (closed) {
                throw closed();
            }
            if (refused != null && deadline.hasBegun()) {
                throw refused;
            }
            loss = refused != null ? refused : session.why();
        } finally {
            lock.unlock();
        }
        if (!deadline.hasBegun()) {
            deadline.lost(loss.notSent(), System.nanoTime());
        }
        if (reestablish(deadline.until()) && !awaitChange(deadline.until())) {
            throw deadline.over(describeAttempts());
        }
    }

    private Failure closed() {
        return Failure.of(Kind.CLOSED, "the device was closed");
    }

    /**
     * Re-establishes the session, at least until {@code until}. Returns false if there is a session
     * or there will be none.
     */
    boolean reestablish(long until) {
        lock.lock();
        try {
            if (closed || !session.isOver()) {
                return false;
            }
            if (working) {
                wantedUntil = wantedUntil - until > 0 ? wantedUntil : until;
                return true;
            }
            // RFC 7143 §13.15: DefaultTime2Wait counts from the loss, even if no caller needed a
            // session since.
            waitsSeconds = refused != null ? 0
                    : session.established().session().timeToWaitSeconds();
            triesFrom = session.overSince() + waitsSeconds * SECOND_NANOS;
            working = true;
            refused = null;
            wantedUntil = until;
            tries = 0;
            failure = null;
        } finally {
            lock.unlock();
        }
        Log.warn(() -> session.portal() + ": " + session.why().getMessage() + "; logging in again");
        Thread.ofVirtual().name("iscsi login again").start(this::logInAgain);
        return true;
    }

    /** Waits until the login has ended; false if it has not by then. */
    private boolean awaitChange(long until) {
        boolean interrupted = Thread.interrupted();
        lock.lock();
        try {
            long left = until - System.nanoTime();
            while (working && left > 0) {
                try {
                    changed.await(left, TimeUnit.NANOSECONDS);
                } catch (InterruptedException exception) {
                    interrupted = true;
                }
                left = until - System.nanoTime();
            }
            return now() != null || closed || refused != null || left > 0;
        } finally {
            lock.unlock();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void logInAgain() {
        try {
            Backoff backoff = new Backoff(System.nanoTime() ^ System.identityHashCode(this));
            UninterruptedWaits.pause(triesFrom - System.nanoTime());
            while (isWanted()) {
                if (logInOnce()) {
                    return;
                }
                UninterruptedWaits.pause(backoff.next());
            }
        } finally {
            finish(Failure.of(Kind.LOGIN, "the login has ended"));
        }
    }

    /** True when the next login is to be made: a caller still waits. */
    private boolean isWanted() {
        lock.lock();
        try {
            if (closed || wantedUntil - System.nanoTime() <= 0) {
                return false;
            }
            number++;
            waitsSeconds = 0;
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Logs in once. True when no login is to follow. */
    private boolean logInOnce() {
        try {
            TargetConnector.Follows follows = new TargetConnector.Follows(true, group);
            Session next = route.logIn(number, follows, attentions);
            begin(next);
            return true;
        } catch (Failure failed) {
            return failed(failed);
        } catch (RuntimeException | Error exception) {
            // The defect will occur again: pause as after any other failure.
            Log.warn(() -> "internal error of this initiator in a login: " + exception, exception);
            return failed(thrown(exception));
        }
    }

    private boolean failed(Failure failed) {
        if (failed.kind() == Kind.CONNECT) {
            route.quirks().forgetLosses();
        }
        lock.lock();
        try {
            tries++;
            failure = failed;
            // The target would reject the same credentials again, and may lock the user out.
            refused = failed.kind() == Kind.AUTHENTICATION ? failed : null;
            return refused != null;
        } finally {
            lock.unlock();
        }
    }

    private void begin(Session next) {
        boolean wanted;
        lock.lock();
        try {
            wanted = !closed;
            if (wanted) {
                session = next;
                uncertainWrites.replaced(next.number());
            }
        } finally {
            lock.unlock();
        }
        if (wanted) {
            Log.warn(() -> next.portal() + ": logged in again");
        } else {
            next.logOut(route.options().logoutTime.toNanos());
        }
    }

    private void finish(Failure end) {
        lock.lock();
        try {
            working = false;
            failure = failure == null ? end : failure;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** Ends the series of sessions. Returns the last one if it was not lost, else null. */
    Session close() {
        lock.lock();
        try {
            Session last = now();
            closed = true;
            working = false;
            changed.signalAll();
            return last;
        } finally {
            lock.unlock();
        }
    }

    /** Describes the attempts to get another session, for messages. */
    String describeAttempts() {
        lock.lock();
        try {
            if (failure != null && tries > 0) {
                return tries == 1 ? "a login failed: " + failure.getMessage()
                        : tries + " logins failed, the last one: " + failure.getMessage();
            }
            return waitsSeconds == 0 ? "the first login is not complete"
                    : "no login was attempted, because the target requires a wait of "
                            + waitsSeconds + " s before the next login (DefaultTime2Wait)";
        } finally {
            lock.unlock();
        }
    }
}

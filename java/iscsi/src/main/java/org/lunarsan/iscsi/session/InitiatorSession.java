package org.lunarsan.iscsi.session;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Optional;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.wire.SerialNumber;

/**
 * The session of an initiator: one CmdSN sequence and one window over all its connections. RFC 7143
 * §4.2.2.1, §4.2.5.1.
 *
 * <p>It assigns CmdSN to requests of connections. A request is allegiant to its connection (RFC
 * 7143 §4.2.5.1), and takes its number when it is encoded, so that numbers ascend on every
 * connection without a queue here.
 *
 * <p>Threads: any, behind one short lock that is taken last: a connection calls in while it holds
 * its own, and nothing is called back under the lock. Effects of one connection's call on the
 * others are queued as {@link SessionMessage}s, and their {@code wake} is called.
 */
public final class InitiatorSession {
    /** The window is closed, or the session ends. */
    public static final long NO_NUMBER = -1;

    /** Limit of connections of one session at a time, set by the Initiator Task Tags. */
    public static final int CONNECTIONS_MAX = 63;

    private final Object lock = new Object();
    private final long isid;
    private int tsih;
    private SessionParameters parameters;
    /** CmdSN of the next request. */
    private int cmdSn;
    private int expCmdSn;
    private int maxCmdSn;
    /** Copied when it changes, so that it can be iterated without the lock. */
    private volatile Member[] members = new Member[0];
    /** Number of running functions that hold numbers back. */
    private int holds;
    /** The connection that logs the session out. */
    private Member loggingOut;
    /** Reason for the end of the session, once it ends. */
    private ConnectionEnding ending;

    /** One connection in the session. */
    private static final class Member {
        final int cid;
        final int ordinal;
        final Runnable wake;
        final ArrayDeque<SessionMessage> messages = new ArrayDeque<>();
        boolean joined;
        /** Set while requests of the connection wait for the window. */
        volatile boolean waits;
        int holds;
        boolean numbered;
        /** The newest CmdSN assigned to it. */
        int lastCmdSn;

        Member(int cid, int ordinal, Runnable wake) {
            this.cid = cid;
            this.ordinal = ordinal;
            this.wake = wake;
        }
    }

    /**
     * Creates a session without connections.
     *
     * @param isid our part of the session identifier, see {@link IsidPool}
     * @param cmdSn of the leading login and of the first command
     */
    public InitiatorSession(long isid, int cmdSn) {
        this.isid = isid;
        this.cmdSn = cmdSn;
        this.expCmdSn = cmdSn;
        this.maxCmdSn = cmdSn - 1;
    }

    /**
     * Opens a connection with this CID for a login. If the login fails, call {@link #closed} with
     * {@link ConnectionEnding#NOT_JOINED}.
     *
     * @param cid its connection ID
     * @param wake called when the connection may have something to send, from any thread, perhaps
     *        with the lock of another connection held: it must neither block nor call this object
     * @return the numbers of its login; empty when it is not allowed: the session ends, the CID is
     *         in use, the leading login has not completed, or MaxConnections is reached
     */
    public Optional<LoginNumbers> open(int cid, Runnable wake) {
        synchronized (lock) {
            int room = parameters == null ? 1
                    : Math.min(parameters.maxConnections(), CONNECTIONS_MAX);
            if (ending != null || find(cid) != null || members.length >= room) {
                return Optional.empty();
            }
            Member[] more = Arrays.copyOf(members, members.length + 1);
            more[members.length] = new Member(cid, freeOrdinal(), wake);
            members = more;
            return Optional.of(new LoginNumbers(isid, tsih, cmdSn));
        }
    }

    /**
     * Joins a connection whose login has completed.
     *
     * @param cid its connection ID
     * @param newTsih from the final Login Response
     * @param negotiated applied for the leading connection
     * @return the parameters of the session
     */
    public SessionParameters joined(int cid, int newTsih, SessionParameters negotiated) {
        synchronized (lock) {
            Member member = find(cid);
            if (member != null) {
                member.joined = true;
            }
            if (parameters == null) {
                tsih = newTsih;
                parameters = negotiated;
            }
            return parameters;
        }
    }

    /**
     * The parameters of the leading login.
     *
     * @return the parameters; empty before
     */
    public Optional<SessionParameters> parameters() {
        synchronized (lock) {
            return Optional.ofNullable(parameters);
        }
    }

    /**
     * Returns a number that distinguishes the Initiator Task Tags of this session's connections.
     *
     * @param cid a connection that was opened
     * @return 0 to {@link #CONNECTIONS_MAX} - 1; unique among the open connections
     */
    public int ordinal(int cid) {
        synchronized (lock) {
            Member member = find(cid);
            return member == null ? 0 : member.ordinal;
        }
    }

    /**
     * Takes the next CmdSN for a request that is not immediate. If there is none now, the
     * connection is woken when that may have changed.
     *
     * @param cid the connection
     * @return the number, as an unsigned one of 32 bits, or {@link #NO_NUMBER}
     */
    public long takeCmdSn(int cid) {
        synchronized (lock) {
            Member member = find(cid);
            if (member == null || !member.joined || ending != null) {
                return NO_NUMBER;
            }
            boolean isOpen = holds == 0 && SerialNumber.within(cmdSn, expCmdSn, maxCmdSn);
            member.waits = !isOpen;
            if (!isOpen) {
                return NO_NUMBER;
            }
            member.numbered = true;
            member.lastCmdSn = cmdSn;
            return Integer.toUnsignedLong(cmdSn++);
        }
    }

    /**
     * Returns the CmdSN for an immediate request.
     *
     * @return the number of the next request that is not immediate
     */
    public int currentCmdSn() {
        synchronized (lock) {
            return cmdSn;
        }
    }

    /**
     * Updates the window from a PDU, if it is newer. RFC 7143 §4.2.2.1: a MaxCmdSN below ExpCmdSN
     * minus 1 makes both invalid, and PDUs of several connections may arrive out of order.
     *
     * @param newExpCmdSn ExpCmdSN as received
     * @param newMaxCmdSn MaxCmdSN as received
     */
    public void window(int newExpCmdSn, int newMaxCmdSn) {
        synchronized (lock) {
            if (SerialNumber.before(newMaxCmdSn, newExpCmdSn - 1)
                    || SerialNumber.after(newExpCmdSn, cmdSn)) {
                return;
            }
            if (SerialNumber.after(newExpCmdSn, expCmdSn)) {
                expCmdSn = newExpCmdSn;
            }
            if (!SerialNumber.after(newMaxCmdSn, maxCmdSn)) {
                return;
            }
            maxCmdSn = newMaxCmdSn;
        }
        wakeThoseThatWait();
    }

    /**
     * Holds numbers back before a task management function on several tasks: no connection gets a
     * new CmdSN before {@link #release}, so that it is known for each command whether the function
     * concerned it. RFC 7143 §11.5.1 lets resets end newer commands as well.
     *
     * @param cid the connection of the function
     */
    public void hold(int cid) {
        synchronized (lock) {
            Member member = find(cid);
            if (member != null) {
                member.holds++;
                holds++;
            }
        }
    }

    /**
     * Ends the hold of a function that is over.
     *
     * @param cid the connection of the function
     */
    public void release(int cid) {
        synchronized (lock) {
            Member member = find(cid);
            if (member == null || member.holds == 0) {
                return;
            }
            member.holds--;
            holds--;
        }
        wakeThoseThatWait();
    }

    /**
     * Reports a completed task management function on several tasks, which ends those of other
     * connections as well. RFC 7143 §4.2.3.3.
     *
     * @param cid the connection on which it ran
     * @param ended the tasks
     */
    public void tasksEnded(int cid, SessionMessage.TasksEnded ended) {
        tellOthers(cid, ended);
    }

    /**
     * Notes that a Logout Request for the whole session was sent: no connection may send requests
     * now.
     *
     * @param cid the connection
     */
    public void loggingOut(int cid) {
        synchronized (lock) {
            ending = ending == null ? ConnectionEnding.SESSION_LOGOUT : ending;
            loggingOut = find(cid);
        }
        tellOthers(cid, new SessionMessage.LoggingOut());
    }

    /**
     * Removes a connection that has ended.
     *
     * @param cid the connection
     * @param how how it ended
     */
    public void closed(int cid, ConnectionEnding how) {
        boolean goes;
        synchronized (lock) {
            Member member = find(cid);
            if (member == null) {
                return;
            }
            members = Arrays.stream(members).filter(other -> other != member)
                    .toArray(Member[]::new);
            holds -= member.holds;
            goes = members.length == 0 || endsSession(member, how);
            if (goes && ending == null) {
                ending = how;
            }
        }
        if (goes) {
            tellOthers(cid, new SessionMessage.Close());
        }
        wakeThoseThatWait();
    }

    /** Ends the session now, without a logout. */
    public void end() {
        synchronized (lock) {
            ending = ending == null ? ConnectionEnding.LOST : ending;
        }
        tellOthers(-1, new SessionMessage.Close());
    }

    /**
     * Takes the next message of the session for a connection.
     *
     * @param cid the connection
     * @return the oldest message; {@code null} if there is none
     */
    public SessionMessage takeMessage(int cid) {
        synchronized (lock) {
            Member member = find(cid);
            return member == null ? null : member.messages.pollFirst();
        }
    }

    /**
     * Returns the reason for the end of the session, which is over when no connection is left. A
     * new one has to be made (session recovery, RFC 7143 §7.1.4.4).
     *
     * @return the reason; empty until the session is over
     */
    public Optional<ConnectionEnding> ending() {
        synchronized (lock) {
            return members.length == 0 ? Optional.ofNullable(ending) : Optional.empty();
        }
    }

    private boolean endsSession(Member member, ConnectionEnding how) {
        return switch (how) {
            case SESSION_LOGOUT, VIOLATION -> true;
            case NOT_JOINED -> false;
            case CONNECTION_LOGOUT -> leavesGap(member);
            // The target closes the other connections first; the answer to the logout is still to
            // come.
            case LOST -> loggingOut != null ? loggingOut == member : leavesGap(member);
        };
    }

    /**
     * True if a CmdSN was lost with its connection. It may never have reached the target, and would
     * block all later ones: at ErrorRecoveryLevel 0 only a new session helps.
     */
    private boolean leavesGap(Member member) {
        return member.numbered && !SerialNumber.before(member.lastCmdSn, expCmdSn);
    }

    private Member find(int cid) {
        for (Member member : members) {
            if (member.cid == cid) {
                return member;
            }
        }
        return null;
    }

    private int freeOrdinal() {
        int ordinal = 0;
        while (isTaken(ordinal)) {
            ordinal++;
        }
        return ordinal;
    }

    private boolean isTaken(int ordinal) {
        return Arrays.stream(members).anyMatch(member -> member.ordinal == ordinal);
    }

    private void tellOthers(int cid, SessionMessage message) {
        Member[] now;
        synchronized (lock) {
            now = members;
            for (Member member : now) {
                if (member.cid != cid) {
                    member.messages.addLast(message);
                }
            }
        }
        for (Member member : now) {
            if (member.cid != cid) {
                member.wake.run();
            }
        }
    }

    private void wakeThoseThatWait() {
        for (Member member : members) {
            if (member.waits) {
                member.wake.run();
            }
        }
    }
}

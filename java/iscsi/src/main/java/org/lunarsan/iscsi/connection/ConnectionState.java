package org.lunarsan.iscsi.connection;

import java.util.ArrayDeque;
import org.lunarsan.iscsi.pdu.ManagementFunction;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.text.TaskReporting;
import org.lunarsan.iscsi.wire.SerialNumber;

/**
 * State shared by the parts of a connection, and the end of requests and of the connection.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class ConnectionState {
    /** Phase of the connection. */
    enum Phase { FULL_FEATURE, DRAINING, CLOSED }

    /** A NOP-Out without a tag: the answer to a ping, or the acknowledgement of an event. */
    record Answer(long lun, int targetTransferTag) {
    }

    final InitiatorSession session;
    final int cid;
    final Runnable wake;
    final ConnectionLimits limits;
    final SessionParameters agreed;
    final ConnectionParameters parameters;
    final SlotTable slots;
    /** Immediate requests, oldest first. */
    final RequestQueue immediate = new RequestQueue();
    /** Requests that wait for the window, oldest first. */
    final RequestQueue waiting = new RequestQueue();
    /** Texts that wait for the previous exchange. */
    final RequestQueue texts = new RequestQueue();
    final RequestQueue completed = new RequestQueue();
    final ArrayDeque<Answer> answers = new ArrayDeque<>(1);
    final ArrayDeque<ConnectionEvent> events = new ArrayDeque<>(1);
    final BurstQueue bursts = new BurstQueue();
    final EndedTags endedTags = new EndedTags();
    final Timers timers = new Timers();
    Phase phase = Phase.FULL_FEATURE;
    int expStatSn;
    /** The running text exchange. */
    TextExchange exchange;
    /** The sent Logout Request that ends this connection. */
    Logout loggingOut;
    /** Set when no more data-out is sent. */
    boolean dataIsOver;
    /** The command whose data-in range the reader fills. */
    Command receiving;
    /** Set when that command ends together with its data segment. */
    boolean receivingIsOver;
    private int windowExp;
    private int windowMax;

    ConnectionState(InitiatorSession session, int cid, Runnable wake, ConnectionLimits limits,
            SessionParameters agreed, ConnectionParameters parameters, int expStatSn) {
        this.session = session;
        this.cid = cid;
        this.wake = wake;
        this.limits = limits;
        this.agreed = agreed;
        this.parameters = parameters;
        this.expStatSn = expStatSn;
        this.slots = new SlotTable(session.ordinal(cid));
        this.windowMax = -1;
    }

    boolean isOpen() {
        return phase != Phase.CLOSED;
    }

    boolean hasFastAbort() {
        return agreed.taskReporting() == TaskReporting.FAST_ABORT;
    }

    /**
     * Checks a StatSN, each of which occurs once and in order: anything else means a lost response,
     * which only session recovery repairs at ErrorRecoveryLevel 0. RFC 7143 §4.2.2.2.
     */
    void onStatSn(int statSn) throws Violated {
        if (statSn != expStatSn) {
            throw new Violated(new Violation.StatSn(statSn, expStatSn));
        }
        expStatSn++;
    }

    /** Checks the StatSN of R2Ts and pings, which announce the next one without consuming it. */
    void onNextStatSn(int statSn) throws Violated {
        if (SerialNumber.after(statSn, expStatSn)) {
            throw new Violated(new Violation.StatSn(statSn, expStatSn));
        }
    }

    void onWindow(int expCmdSn, int maxCmdSn) {
        if (windowExp != expCmdSn || windowMax != maxCmdSn) {
            windowExp = expCmdSn;
            windowMax = maxCmdSn;
            session.window(expCmdSn, maxCmdSn);
        }
    }

    /** Queues a request that has a slot, of the machine or the caller. */
    void enqueue(Request request) {
        if (request instanceof TextExchange text) {
            if (exchange != null && exchange != text) {
                texts.add(text);
                return;
            }
            exchange = text;
        }
        (request.immediate ? immediate : waiting).add(request);
        wake.run();
    }

    /** Queues an internal request. */
    void submitInternal(Request own) {
        own.begin();
        slots.put(own);
        enqueue(own);
    }

    /** Returns the request with this tag of the peer if it was sent, else null. */
    Request sent(int tag) {
        Request request = slots.find(tag);
        return request != null && request.state == Request.SENT ? request : null;
    }

    /** Ends a request; {@code failure} is null if the target answered. */
    void finish(Request request, Failure failure) {
        slots.remove(request);
        request.failure = failure;
        switch (request) {
            case Command command -> bursts.removeAll(command);
            case Management management -> managed(management);
            case Ping ping -> timers.isPinged &= !ping.keepAlive;
            case TextExchange text -> nextText(text);
            case Logout logout -> timers.logsOut &= logout.state != Request.SENT;
        }
        request.over = true;
        if (request.holders == 0) {
            giveBack(request);
        }
    }

    /** Releases one hold on the buffers of a request. */
    void release(Request request) {
        request.holders--;
        if (request.over && request.holders == 0) {
            giveBack(request);
        }
    }

    private void giveBack(Request request) {
        request.state = Request.IDLE;
        if (!request.internal) {
            completed.add(request);
        }
    }

    /** Resumes the commands that the function did not end. */
    private void managed(Management management) {
        for (int at = 0; at < slots.capacity(); at++) {
            if (slots.at(at) instanceof Command command && command.pausedBy == management) {
                command.pausedBy = null;
                wake.run();
            }
        }
        if (ManagementFunction.isMultiTask(management.function)) {
            session.release(cid);
        }
    }

    /** Sends the next text once the previous exchange is over. */
    private void nextText(TextExchange over) {
        if (over.continues) {
            waiting.remove(over);
        }
        if (exchange != over) {
            texts.remove(over);
            return;
        }
        exchange = null;
        if (texts.poll() instanceof TextExchange next) {
            enqueue(next);
        }
    }

    /** Ends one task that the target may still consider running. */
    void endTask(Command command) {
        if (command == receiving) {
            // The reader is filling the command's buffer; the command completes afterwards.
            receivingIsOver = true;
            return;
        }
        endedTags.add(command.tag);
        finish(command, Failure.ABORTED);
    }

    /**
     * Stops sending data. The target terminates all tasks when it gets the Logout Request (RFC 7143
     * §11.14), so later data would belong to no task.
     */
    void endData() {
        dataIsOver = true;
        bursts.clear();
    }

    /**
     * Withdraws the requests that still wait for a number: none may be sent after a Logout Request
     * (RFC 7143 §11.14).
     */
    void withdrawAll(String why) {
        Failure failure = Failure.refused(why);
        while (texts.peek() != null) {
            finish(texts.poll(), failure);
        }
        while (waiting.peek() != null) {
            finish(waiting.poll(), failure);
        }
    }

    /**
     * Ends the connection: completes all pending requests and reports the reason. Has an effect
     * once.
     */
    void shut(CloseReason reason, ConnectionEnding ending, Failure failure) {
        if (phase == Phase.CLOSED) {
            return;
        }
        phase = Phase.CLOSED;
        endData();
        answers.clear();
        for (Request text = texts.poll(); text != null; text = texts.poll()) {
            finish(text, Failure.UNSENT);
        }
        for (int at = 0; at < slots.capacity(); at++) {
            Request request = slots.at(at);
            if (request != null) {
                boolean unsent = request.state == Request.WAITING;
                unlink(request);
                finish(request, unsent ? Failure.UNSENT : failure);
            }
        }
        timers.clear();
        session.closed(cid, ending);
        events.addLast(new ConnectionEvent.Closed(reason));
        wake.run();
    }

    private void unlink(Request request) {
        if (!immediate.remove(request)) {
            waiting.remove(request);
        }
    }

    /** Ends the connection because the peer broke a rule. */
    void violated(Violated violated) {
        shut(new CloseReason.Violated(violated.violation()), ConnectionEnding.VIOLATION,
                Failure.LOST);
    }
}

package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.pdu.LogoutReason;
import org.lunarsan.iscsi.pdu.ManagementFunction;
import org.lunarsan.iscsi.pdu.ManagementResponse;

/**
 * Accepts requests of the caller: checks whether each is valid and may be sent now.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class RequestSubmitter {
    /** Slots beyond the limit, for logouts and for requests of the machine itself. */
    private static final int SPARE_REQUESTS = 32;

    private final ConnectionState state;

    RequestSubmitter(ConnectionState state) {
        this.state = state;
    }

    /** Submits a request. False: refused, and the request holds the reason. */
    boolean submit(Request request) {
        if (request.state != Request.IDLE) {
            throw new IllegalStateException("the request is pending; wait until it has completed");
        }
        request.begin();
        String refusal = reasonToRefuse(request);
        if (refusal != null) {
            request.state = Request.IDLE;
            request.failure = Failure.refused(refusal);
            return false;
        }
        state.slots.put(request);
        switch (request) {
            case Management management -> manage(management);
            case Logout logout -> logOut(logout);
            default -> state.enqueue(request);
        }
        return true;
    }

    /** Returns the reason for refusing a request, or null. */
    private String reasonToRefuse(Request request) {
        boolean isLogout = request instanceof Logout;
        if (state.phase == ConnectionState.Phase.CLOSED) {
            return "the connection is closed";
        }
        if (isLogout) {
            boolean late = state.timers.logsOut || state.slots.used() >= room();
            return late ? "the connection is being logged out" : null;
        }
        if (state.phase == ConnectionState.Phase.DRAINING) {
            return "the connection is being logged out";
        }
        if (state.slots.used() >= state.limits.requestsMax()) {
            return "too many requests are pending";
        }
        int sendMax = state.parameters.sendDataSegmentBytesMax();
        return switch (request) {
            case Command command -> reasonToRefuse(command);
            case Ping ping -> ping.data.length <= sendMax ? null
                    : "a ping longer than the target can receive";
            case TextExchange text -> text.text.length <= sendMax ? null
                    : "a text longer than the target can receive";
            case Management management -> reasonToRefuse(management);
            case Logout logout -> null;
        };
    }

    private int room() {
        return state.limits.requestsMax() + SPARE_REQUESTS;
    }

    private static String reasonToRefuse(Command command) {
        int bytes = command.cdb().length;
        return bytes > 0 && bytes <= CommandSegments.CDB_BYTES_MAX ? null
                : "a CDB has 1 to 260 bytes";
    }

    private String reasonToRefuse(Management management) {
        int function = management.function;
        if (function == ManagementFunction.TASK_REASSIGN) {
            return "the function needs ErrorRecoveryLevel 2";
        }
        if (ManagementFunction.protocolLevel(function) > state.agreed.protocolLevel()) {
            return "the function needs iSCSIProtocolLevel 2";
        }
        boolean hasNoReference = management.referenced == null;
        return ManagementFunction.isOfOneTask(function) && hasNoReference
                ? "the function has to name a task" : null;
    }

    private void manage(Management management) {
        if (ManagementFunction.isMultiTask(management.function)) {
            state.session.hold(state.cid);
        }
        Command task = management.referenced;
        if (task == null) {
            state.enqueue(management);
            return;
        }
        boolean isOpen = state.slots.find(task.tag) == task;
        boolean isAbort = management.function == ManagementFunction.ABORT_TASK;
        if (isOpen && task.state == Request.WAITING && isAbort) {
            withdraw(task);
            answer(management, ManagementResponse.FUNCTION_COMPLETE);
        } else if (isOpen && task.state == Request.SENT) {
            management.referencedTag = task.tag;
            state.enqueue(management);
        } else {
            answer(management, withoutTask(management.function));
        }
    }

    private void withdraw(Command task) {
        if (!state.waiting.remove(task)) {
            state.immediate.remove(task);
        }
        state.finish(task, Failure.ABORTED);
    }

    private void answer(Management management, int response) {
        management.response = response;
        state.finish(management, null);
    }

    /**
     * Returns the response to a function on one task that the target does not know: RFC 7143
     * §11.6.1, RFC 7144 §6.4.2.
     */
    static int withoutTask(int function) {
        return function == ManagementFunction.QUERY_TASK ? ManagementResponse.FUNCTION_COMPLETE
                : ManagementResponse.TASK_DOES_NOT_EXIST;
    }

    private void logOut(Logout logout) {
        if (logout.concerns(state.cid)) {
            state.phase = ConnectionState.Phase.DRAINING;
            state.timers.drains = false;
            state.withdrawAll("the connection is being logged out");
        }
        state.enqueue(logout);
    }

    /**
     * Accepts no new requests, and logs this connection out when all pending ones have ended, at
     * the latest at {@code deadline}.
     */
    void drain(long deadline) {
        if (state.phase == ConnectionState.Phase.FULL_FEATURE) {
            state.phase = ConnectionState.Phase.DRAINING;
            state.timers.drains = true;
            state.timers.drainBy = deadline;
            state.wake.run();
        }
    }

    void logOutWhenDrained() {
        if (state.timers.drains && state.slots.used() == 0) {
            logOutDrained();
        }
    }

    void logOutDrained() {
        state.timers.drains = false;
        state.withdrawAll("the target asked for a logout");
        Logout logout = new Logout(LogoutReason.CLOSE_CONNECTION, state.cid);
        logout.internal = true;
        state.submitInternal(logout);
    }

    /**
     * Queues an internal request if there is a free slot; the target may ping more often than
     * we answer.
     */
    void submitInternal(Request own) {
        if (state.slots.used() < room()) {
            state.submitInternal(own);
        }
    }

    /**
     * Queues a NOP-Out without a tag. A target that pings faster than can be answered gets fewer
     * answers.
     */
    void answerPing(long lun, int targetTransferTag) {
        if (state.answers.size() < state.limits.requestsMax()) {
            state.answers.addLast(new ConnectionState.Answer(lun, targetTransferTag));
            state.wake.run();
        }
    }

    /** Wraps bytes, so that a ping's echo and a text are sent without a copy. */
    static ByteBuffer segment(byte[] bytes) {
        return ByteBuffer.wrap(bytes);
    }
}

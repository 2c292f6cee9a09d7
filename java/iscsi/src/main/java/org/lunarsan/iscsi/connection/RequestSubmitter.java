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

    private final Core core;

    RequestSubmitter(Core core) {
        this.core = core;
    }

    /** Submits a request. False: refused, and the request holds the reason. */
    boolean submit(Request request) {
        if (request.state != Request.IDLE) {
            throw new IllegalStateException("the request is pending; wait until it has completed");
        }
        request.begin();
        String refusal = judge(request);
        if (refusal != null) {
            request.state = Request.IDLE;
            request.failure = Failure.refused(refusal);
            return false;
        }
        core.slots.put(request);
        switch (request) {
            case Management management -> manage(management);
            case Logout logout -> logOut(logout);
            default -> core.enqueue(request);
        }
        return true;
    }

    /** Returns the reason for refusing a request, or null. */
    private String judge(Request request) {
        boolean isLogout = request instanceof Logout;
        if (core.phase == Core.Phase.CLOSED) {
            return "the connection is closed";
        }
        if (isLogout) {
            boolean late = core.timers.logsOut || core.slots.used() >= room();
            return late ? "the connection is being logged out" : null;
        }
        if (core.phase == Core.Phase.DRAINING) {
            return "the connection is being logged out";
        }
        if (core.slots.used() >= core.limits.requestsMax()) {
            return "too many requests are pending";
        }
        int sendMax = core.parameters.sendDataSegmentBytesMax();
        return switch (request) {
            case Command command -> judge(command);
            case Ping ping -> ping.data.length <= sendMax ? null
                    : "a ping longer than the target can receive";
            case TextExchange text -> text.text.length <= sendMax ? null
                    : "a text longer than the target can receive";
            case Management management -> judge(management);
            case Logout logout -> null;
        };
    }

    private int room() {
        return core.limits.requestsMax() + SPARE_REQUESTS;
    }

    private static String judge(Command command) {
        int bytes = command.cdb().length;
        return bytes > 0 && bytes <= CommandSegments.CDB_BYTES_MAX ? null
                : "a CDB has 1 to 260 bytes";
    }

    private String judge(Management management) {
        int function = management.function;
        if (function == ManagementFunction.TASK_REASSIGN) {
            return "it needs ErrorRecoveryLevel 2";
        }
        if (ManagementFunction.protocolLevel(function) > core.agreed.protocolLevel()) {
            return "it needs iSCSIProtocolLevel 2";
        }
        boolean namesNone = management.referenced == null;
        return ManagementFunction.isOfOneTask(function) && namesNone
                ? "it has to name a task" : null;
    }

    private void manage(Management management) {
        if (ManagementFunction.isMultiTask(management.function)) {
            core.session.hold(core.cid);
        }
        Command task = management.referenced;
        if (task == null) {
            core.enqueue(management);
            return;
        }
        boolean inHand = core.slots.find(task.tag) == task;
        boolean isAbort = management.function == ManagementFunction.ABORT_TASK;
        if (inHand && task.state == Request.WAITING && isAbort) {
            withdraw(task);
            answer(management, ManagementResponse.FUNCTION_COMPLETE);
        } else if (inHand && task.state == Request.SENT) {
            management.referencedTag = task.tag;
            core.enqueue(management);
        } else {
            answer(management, withoutTask(management.function));
        }
    }

    private void withdraw(Command task) {
        if (!core.waiting.remove(task)) {
            core.urgent.remove(task);
        }
        core.finish(task, Failure.ABORTED);
    }

    private void answer(Management management, int response) {
        management.response = response;
        core.finish(management, null);
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
        if (logout.concerns(core.cid)) {
            core.phase = Core.Phase.DRAINING;
            core.timers.drains = false;
            core.withdrawAll("the connection is being logged out");
        }
        core.enqueue(logout);
    }

    /**
     * Accepts no new requests, and logs this connection out when all are over, at the latest at
     * {@code by}.
     */
    void drain(long by) {
        if (core.phase == Core.Phase.FULL_FEATURE) {
            core.phase = Core.Phase.DRAINING;
            core.timers.drains = true;
            core.timers.drainBy = by;
            core.wake.run();
        }
    }

    void logOutWhenDrained() {
        if (core.timers.drains && core.slots.used() == 0) {
            logOutDrained();
        }
    }

    void logOutDrained() {
        core.timers.drains = false;
        core.withdrawAll("the target asked for a logout");
        Logout logout = new Logout(LogoutReason.CLOSE_CONNECTION, core.cid);
        logout.internal = true;
        core.ask(logout);
    }

    /**
     * Queues a request of the machine if there is a free slot; the target may ping more often than
     * we answer.
     */
    void ask(Request own) {
        if (core.slots.used() < room()) {
            core.ask(own);
        }
    }

    /**
     * Queues a NOP-Out without a tag. A target that pings faster than can be answered gets fewer
     * answers.
     */
    void answerPing(long lun, int targetTransferTag) {
        if (core.answers.size() < core.limits.requestsMax()) {
            core.answers.addLast(new Core.Answer(lun, targetTransferTag));
            core.wake.run();
        }
    }

    /** Wraps bytes, so that a ping's echo and a text are sent without a copy. */
    static ByteBuffer segment(byte[] bytes) {
        return ByteBuffer.wrap(bytes);
    }
}

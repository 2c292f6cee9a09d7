package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.lunarsan.iscsi.pdu.AsyncEvent;
import org.lunarsan.iscsi.pdu.AsyncMessage;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LogoutReason;
import org.lunarsan.iscsi.pdu.LogoutResponse;
import org.lunarsan.iscsi.pdu.LogoutResult;
import org.lunarsan.iscsi.pdu.ManagementFunction;
import org.lunarsan.iscsi.pdu.ManagementResponse;
import org.lunarsan.iscsi.pdu.NopIn;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Reject;
import org.lunarsan.iscsi.pdu.ScsiCommandView;
import org.lunarsan.iscsi.pdu.TaskManagementResponse;
import org.lunarsan.iscsi.pdu.TextResponse;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.SessionMessage.TasksEnded;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.wire.Lun;
import org.lunarsan.iscsi.wire.SerialNumber;

/**
 * Processes all PDUs of a target except the data and status of commands: answers to other requests,
 * NOP-In, Asynchronous Message, Reject.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class ControlPduHandler {
    private static final long SECOND = 1_000_000_000L;
    /**
     * Longest time for which a connection that has to log out waits for its commands, even if the
     * target would wait for hours: it accepts no others meanwhile.
     */
    private static final long DRAIN_NANOS_MAX = 60 * SECOND;

    private final ConnectionState state;
    private final RequestSubmitter submitter;

    ControlPduHandler(ConnectionState state, RequestSubmitter submitter) {
        this.state = state;
        this.submitter = submitter;
    }

    /**
     * Checks the header of a NOP-In; an answer to our ping consumes a StatSN, a ping does not. RFC
     * 7143 §11.19.
     */
    void onNopInHeader(NopIn nop) throws Violated {
        state.onWindow(nop.expCmdSn(), nop.maxCmdSn());
        int tag = nop.initiatorTaskTag();
        if (tag != BasicHeader.TAG_RESERVED) {
            state.onStatSn(nop.statSn());
            if (!(state.sent(tag) instanceof Ping)) {
                throw new Violated(new Violation.UnknownTag(Opcode.NOP_IN, tag));
            }
            return;
        }
        state.onNextStatSn(nop.statSn());
        if (nop.targetTransferTag() != BasicHeader.TAG_RESERVED) {
            submitter.answerPing(nop.lun(), nop.targetTransferTag());
        }
    }

    /** Processes the complete answer to a ping. */
    void onPong(NopIn nop, ByteBuffer echo) throws Violated {
        if (!(state.sent(nop.initiatorTaskTag()) instanceof Ping ping)) {
            return;
        }
        int echoed =
                Math.min(ping.data.length, state.parameters.receiveDataSegmentBytesMax());
        if (!echo.equals(ByteBuffer.wrap(ping.data, 0, echoed))) {
            throw Violated.malformed(Opcode.NOP_IN, "the data of a ping was changed");
        }
        state.finish(ping, null);
    }

    /** Processes the end of a task management function. RFC 7143 §11.6. */
    void onManagement(TaskManagementResponse answer) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(state.sent(tag) instanceof Management management)) {
            throw new Violated(new Violation.UnknownTag(Opcode.TASK_MANAGEMENT_RESPONSE, tag));
        }
        int function = management.function;
        if (answer.response() == ManagementResponse.FUNCTION_COMPLETE) {
            boolean isAbort = function == ManagementFunction.ABORT_TASK;
            if (isAbort && state.sent(management.referencedTag) instanceof Command aborted) {
                abort(aborted);
            }
            if (ManagementFunction.isMultiTask(function)) {
                TasksEnded ended =
                        new TasksEnded(ManagementFunction.isOfAllUnits(function), management.lun,
                                management.cmdSn);
                endTasks(ended);
                state.session.tasksEnded(state.cid, ended);
            }
        }
        management.response = answer.response();
        management.information = state.agreed.protocolLevel() >= 2 ? answer.information() : 0;
        state.finish(management, null);
    }

    /** Ends an aborted task. The target sends nothing more for it, so its tag is not kept. */
    private void abort(Command aborted) {
        if (aborted == state.receiving) {
            state.endTask(aborted);
        } else {
            state.finish(aborted, Failure.ABORTED);
        }
    }

    /**
     * Ends the tasks of this connection that a completed function on several tasks concerns. PDUs
     * that the target sent for them before may still arrive if the function ran on another
     * connection.
     */
    void endTasks(TasksEnded ended) {
        for (Command command : commandsInOrder()) {
            if (ended.concerns(command.lun()) && isOlder(command, ended.before())) {
                state.endTask(command);
            }
        }
    }

    /** Returns the commands in the order in which they were sent. */
    private List<Command> commandsInOrder() {
        List<Command> commands = new ArrayList<>();
        for (int at = 0; at < state.slots.capacity(); at++) {
            Request request = state.slots.at(at);
            if (request instanceof Command command && command.state == Request.SENT) {
                commands.add(command);
            }
        }
        commands.sort((one, other) -> Integer.signum(one.cmdSn - other.cmdSn));
        return commands;
    }

    /**
     * True if a function on several tasks, sent with CmdSN {@code before}, concerns this command.
     */
    static boolean isCovered(Command command, Management function, int before) {
        boolean unit = ManagementFunction.isOfAllUnits(function.function)
                || Lun.isSameUnit(function.lun, command.lun());
        return command.state == Request.SENT && unit && isOlder(command, before);
    }

    /**
     * True if a command is older than a function. An immediate command has the CmdSN of the next
     * one, so one sent just before the function has the function's own.
     */
    private static boolean isOlder(Command command, int before) {
        return SerialNumber.before(command.cmdSn, before)
                || command.immediate && command.cmdSn == before;
    }

    /** Processes one Text Response of an exchange. RFC 7143 §11.11. */
    void onText(TextResponse answer, ByteBuffer text) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(state.sent(tag) instanceof TextExchange question)) {
            throw new Violated(new Violation.UnknownTag(Opcode.TEXT_RESPONSE, tag));
        }
        if (question.continues) {
            throw Violated.malformed(Opcode.TEXT_RESPONSE, "no request is pending for it");
        }
        question.rounds++;
        int bytesMax = state.limits.textBytesMax();
        if (question.gathered.size() + text.remaining() > bytesMax
                || question.rounds > TextExchange.ROUNDS_MAX) {
            throw new Violated(new Violation.TextTooLong(bytesMax));
        }
        byte[] bytes = new byte[text.remaining()];
        text.get(text.position(), bytes);
        question.gathered.writeBytes(bytes);
        boolean isFinal = (answer.flags() & TextResponse.FINAL) != 0;
        if (isFinal && (answer.flags() & TextResponse.CONTINUE) != 0) {
            throw Violated.malformed(Opcode.TEXT_RESPONSE, "both F and C");
        }
        if (isFinal) {
            state.finish(question, null);
            return;
        }
        if (answer.targetTransferTag() == BasicHeader.TAG_RESERVED) {
            throw Violated.malformed(Opcode.TEXT_RESPONSE, "neither F nor a Target Transfer Tag");
        }
        question.continues = true;
        question.lun = answer.lun();
        question.targetTransferTag = answer.targetTransferTag();
        state.enqueue(question);
    }

    /** Processes the end of a logout. RFC 7143 §11.15. */
    void onLogout(LogoutResponse answer) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(state.sent(tag) instanceof Logout logout)) {
            throw new Violated(new Violation.UnknownTag(Opcode.LOGOUT_RESPONSE, tag));
        }
        logout.response = answer.response();
        logout.timeToWaitSeconds = answer.timeToWaitSeconds();
        logout.timeToRetainSeconds = answer.timeToRetainSeconds();
        state.finish(logout, null);
        if (logout.concerns(state.cid)) {
            if (answer.response() != LogoutResult.CLOSED) {
                // The logout ended nothing, and the outcome of the tasks is unknown. RFC 7143
                // §11.15.1.
                state.shut(new CloseReason.PeerClosed(), ConnectionEnding.LOST, Failure.LOST);
                return;
            }
            boolean ofSession = logout.reason == LogoutReason.CLOSE_SESSION;
            state.shut(new CloseReason.LoggedOut(),
                    ofSession ? ConnectionEnding.SESSION_LOGOUT
                            : ConnectionEnding.CONNECTION_LOGOUT,
                    Failure.LOGGED_OUT);
        }
    }

    /** Processes an Asynchronous Message. RFC 7143 §11.9. */
    void onAsync(long now, AsyncMessage message, ByteBuffer data) throws Violated {
        byte[] sense = message.event() == AsyncEvent.SCSI_EVENT
                ? DataHandler.sense(data, Opcode.ASYNC_MESSAGE) : new byte[0];
        tell(new ConnectionEvent.Asynchronous(message.event(), message.lun(),
                message.vendorCode(), message.parameter1(), message.parameter2(),
                message.parameter3(), sense));
        switch (message.event()) {
            case AsyncEvent.LOGOUT_REQUESTED -> {
                // Log out a second before the target's deadline, even with pending requests.
                long grace = Math.min(message.parameter3() * SECOND, DRAIN_NANOS_MAX);
                submitter.drain(now + grace - Math.min(SECOND, grace / 2));
            }
            case AsyncEvent.RENEGOTIATE -> renegotiate();
            case AsyncEvent.TASKS_TERMINATED -> onTerminated(message);
            default -> {
                // The target itself carries out 2 and 3; the end of the connection completes all
                // requests.
            }
        }
    }

    /** Queues an event; drops the oldest if the driver does not fetch them. */
    private void tell(ConnectionEvent event) {
        final int eventsMax = 64;
        if (state.events.size() >= eventsMax) {
            state.events.pollFirst();
        }
        state.events.addLast(event);
    }

    /** Starts a negotiation. An empty request proposes nothing, so the answer changes nothing. */
    private void renegotiate() {
        if (state.exchange == null && state.phase == ConnectionState.Phase.FULL_FEATURE) {
            TextExchange empty = new TextExchange(new TextBuilder());
            empty.internal = true;
            submitter.submitInternal(empty);
        }
    }

    /**
     * Ends the active tasks of a unit, which the target is terminating (RFC 7143 §11.9.1): nothing
     * more is sent for them or answered to them, and a NOP-Out with the unit's LUN acknowledges the
     * message. Commands that the target had not received when it sent the message are not among
     * them.
     */
    private void onTerminated(AsyncMessage message) {
        if (!state.hasFastAbort()) {
            return;
        }
        for (Command command : commandsInOrder()) {
            if (Lun.isSameUnit(command.lun(), message.lun())
                    && SerialNumber.before(command.cmdSn, message.expCmdSn())) {
                state.endTask(command);
            }
        }
        submitter.answerPing(message.lun(), BasicHeader.TAG_RESERVED);
    }

    /**
     * Processes a Reject, whose data segment holds the header of the rejected PDU. RFC 7143 §7.3,
     * §11.17.
     */
    void onReject(Reject reject, ByteBuffer data) throws Violated {
        int at = data.position();
        if (data.remaining() < BasicHeader.HEADER_BYTES) {
            throw Violated.malformed(Opcode.REJECT, "it does not contain the rejected header");
        }
        Request request = state.sent(BasicHeader.initiatorTaskTag(data, at));
        int opcode = BasicHeader.opcode(data, at);
        // For Data-Out, the target sends a status for the task as well. RFC 7143 §7.3.
        if (request == null || opcode == Opcode.DATA_OUT) {
            return;
        }
        boolean ofCommand = opcode == Opcode.SCSI_COMMAND;
        if (ofCommand != request instanceof Command) {
            return;
        }
        if (request instanceof Command command) {
            onRejectedCommand(command, ScsiCommandView.cmdSn(data, at), reject);
        } else {
            state.finish(request, Failure.rejected(reject.reason()));
        }
    }

    private void onRejectedCommand(Command command, int cmdSn, Reject reject) {
        if (command.cmdSn != cmdSn || command == state.receiving) {
            return;
        }
        state.finish(command, Failure.rejected(reject.reason()));
        boolean counted = SerialNumber.before(cmdSn, reject.expCmdSn());
        if (!command.immediate && !counted) {
            submitter.submitInternal(Ping.fillsGap(cmdSn));
        }
    }
}

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
import org.lunarsan.iscsi.session.Ending;
import org.lunarsan.iscsi.session.SessionMessage.TasksEnded;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.wire.Lun;
import org.lunarsan.iscsi.wire.SerialNumber;

/**
 * What a target sends besides the data and status of commands: the answers to other requests,
 * NOP-In, Asynchronous Message, Reject.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Notices {
    private static final long SECOND = 1_000_000_000L;
    /**
     * So long at most a connection that is to be left waits for its commands, though the target
     * would wait for hours: it takes no others meanwhile.
     */
    private static final long DRAIN_NANOS_MAX = 60 * SECOND;

    private final Core core;
    private final Asking asking;

    Notices(Core core, Asking asking) {
        this.core = core;
        this.asking = asking;
    }

    /**
     * The header of a NOP-In; an answer to our ping consumes a StatSN, a ping does not. RFC 7143
     * §11.19.
     */
    void onNopInHeader(NopIn nop) throws Violated {
        core.onWindow(nop.expCmdSn(), nop.maxCmdSn());
        int tag = nop.initiatorTaskTag();
        if (tag != BasicHeader.TAG_RESERVED) {
            core.onStatSn(nop.statSn());
            if (!(core.sent(tag) instanceof Ping)) {
                throw new Violated(new Violation.UnknownTag(Opcode.NOP_IN, tag));
            }
            return;
        }
        core.onNextStatSn(nop.statSn());
        if (nop.targetTransferTag() != BasicHeader.TAG_RESERVED) {
            asking.answerPing(nop.lun(), nop.targetTransferTag());
        }
    }

    /** The whole answer to a ping. */
    void onPong(NopIn nop, ByteBuffer echo) throws Violated {
        if (!(core.sent(nop.initiatorTaskTag()) instanceof Ping ping)) {
            return;
        }
        int echoed =
                Math.min(ping.data.length, core.parameters.receiveDataSegmentBytesMax());
        if (!echo.equals(ByteBuffer.wrap(ping.data, 0, echoed))) {
            throw Violated.malformed(Opcode.NOP_IN, "the data of a ping came back changed");
        }
        core.finish(ping, null);
    }

    /** The end of a task management function. RFC 7143 §11.6. */
    void onManagement(TaskManagementResponse answer) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(core.sent(tag) instanceof Management management)) {
            throw new Violated(new Violation.UnknownTag(Opcode.TASK_MANAGEMENT_RESPONSE, tag));
        }
        int function = management.function;
        if (answer.response() == ManagementResponse.FUNCTION_COMPLETE) {
            boolean isAbort = function == ManagementFunction.ABORT_TASK;
            if (isAbort && core.sent(management.referencedTag) instanceof Command aborted) {
                abort(aborted);
            }
            if (ManagementFunction.isMultiTask(function)) {
                TasksEnded ended =
                        new TasksEnded(ManagementFunction.isOfAllUnits(function), management.lun,
                                management.cmdSn);
                endTasks(ended);
                core.session.tasksEnded(core.cid, ended);
            }
        }
        management.response = answer.response();
        management.information = core.agreed.protocolLevel() >= 2 ? answer.information() : 0;
        core.finish(management, null);
    }

    /** The target sends nothing more of an aborted task, so its tag need not be remembered. */
    private void abort(Command aborted) {
        if (aborted == core.receiving) {
            core.endTask(aborted);
        } else {
            core.finish(aborted, Failure.ABORTED);
        }
    }

    /**
     * A function on several tasks was completed: those of this connection are over. What the target
     * sent of them before may still be on its way, if the function ran elsewhere.
     */
    void endTasks(TasksEnded ended) {
        for (Command command : commandsInOrder()) {
            if (ended.concerns(command.lun()) && isOlder(command, ended.before())) {
                core.endTask(command);
            }
        }
    }

    /** In the order in which they were sent. */
    private List<Command> commandsInOrder() {
        List<Command> commands = new ArrayList<>();
        for (int at = 0; at < core.slots.capacity(); at++) {
            Request request = core.slots.at(at);
            if (request instanceof Command command && command.state == Request.SENT) {
                commands.add(command);
            }
        }
        commands.sort((one, other) -> Integer.signum(one.cmdSn - other.cmdSn));
        return commands;
    }

    /** A function on several tasks, sent with that CmdSN, means this one. */
    static boolean isMeant(Command command, Management function, int before) {
        boolean unit = ManagementFunction.isOfAllUnits(function.function)
                || Lun.isSameUnit(function.lun, command.lun());
        return command.state == Request.SENT && unit && isOlder(command, before);
    }

    /**
     * An immediate command bears the CmdSN of the next one, so one sent just before the function
     * bears the function's own.
     */
    private static boolean isOlder(Command command, int before) {
        return SerialNumber.before(command.cmdSn, before)
                || command.immediate && command.cmdSn == before;
    }

    /** One Text Response of an exchange. RFC 7143 §11.11. */
    void onText(TextResponse answer, ByteBuffer text) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(core.sent(tag) instanceof TextQuestion question)) {
            throw new Violated(new Violation.UnknownTag(Opcode.TEXT_RESPONSE, tag));
        }
        if (question.goesOn) {
            throw Violated.malformed(Opcode.TEXT_RESPONSE, "nothing asked for it");
        }
        question.rounds++;
        int bytesMax = core.limits.textBytesMax();
        if (question.gathered.size() + text.remaining() > bytesMax
                || question.rounds > TextQuestion.ROUNDS_MAX) {
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
            core.finish(question, null);
            return;
        }
        if (answer.targetTransferTag() == BasicHeader.TAG_RESERVED) {
            throw Violated.malformed(Opcode.TEXT_RESPONSE, "neither F nor a tag to go on with");
        }
        question.goesOn = true;
        question.lun = answer.lun();
        question.targetTransferTag = answer.targetTransferTag();
        core.enqueue(question);
    }

    /** The end of a logout. RFC 7143 §11.15. */
    void onLogout(LogoutResponse answer) throws Violated {
        int tag = answer.initiatorTaskTag();
        if (!(core.sent(tag) instanceof Logout logout)) {
            throw new Violated(new Violation.UnknownTag(Opcode.LOGOUT_RESPONSE, tag));
        }
        logout.response = answer.response();
        logout.timeToWaitSeconds = answer.timeToWaitSeconds();
        logout.timeToRetainSeconds = answer.timeToRetainSeconds();
        core.finish(logout, null);
        if (logout.concerns(core.cid)) {
            if (answer.response() != LogoutResult.CLOSED) {
                // It ended nothing: what becomes of the tasks nobody knows. RFC 7143 §11.15.1.
                core.shut(new CloseReason.PeerClosed(), Ending.LOST, Failure.LOST);
                return;
            }
            boolean ofSession = logout.reason == LogoutReason.CLOSE_SESSION;
            core.shut(new CloseReason.LoggedOut(),
                    ofSession ? Ending.SESSION_LOGOUT : Ending.CONNECTION_LOGOUT,
                    Failure.LOGGED_OUT);
        }
    }

    /** An Asynchronous Message. RFC 7143 §11.9. */
    void onAsync(long now, AsyncMessage message, ByteBuffer data) throws Violated {
        byte[] sense = message.event() == AsyncEvent.SCSI_EVENT
                ? Reading.sense(data, Opcode.ASYNC_MESSAGE) : new byte[0];
        tell(new ConnectionEvent.Asynchronous(message.event(), message.lun(),
                message.vendorCode(), message.parameter1(), message.parameter2(),
                message.parameter3(), sense));
        switch (message.event()) {
            case AsyncEvent.LOGOUT_REQUESTED -> {
                // A second before the target loses patience, whatever is still in hand.
                long patience = Math.min(message.parameter3() * SECOND, DRAIN_NANOS_MAX);
                asking.drain(now + patience - Math.min(SECOND, patience / 2));
            }
            case AsyncEvent.RENEGOTIATE -> renegotiate();
            case AsyncEvent.TASKS_TERMINATED -> onTerminated(message);
            default -> {
                // 2 and 3 are carried out by the target; when the connection ends, all is told.
            }
        }
    }

    /** Events that nobody fetches are let go, the oldest first. */
    private void tell(ConnectionEvent event) {
        final int eventsMax = 64;
        if (core.events.size() >= eventsMax) {
            core.events.pollFirst();
        }
        core.events.addLast(event);
    }

    /** An empty request proposes nothing, so what comes back changes nothing. */
    private void renegotiate() {
        if (core.exchange == null && core.phase == Core.Phase.FULL_FEATURE) {
            TextQuestion empty = new TextQuestion(new TextBuilder());
            empty.internal = true;
            asking.ask(empty);
        }
    }

    /**
     * RFC 7143 §11.9.1: all active tasks of the unit are being terminated: nothing more is sent for
     * them or answered to them, and the message is acknowledged by a NOP-Out that bears its LUN.
     * What the target had not received when it sent the message is none of them.
     */
    private void onTerminated(AsyncMessage message) {
        if (!core.isFast()) {
            return;
        }
        for (Command command : commandsInOrder()) {
            if (Lun.isSameUnit(command.lun(), message.lun())
                    && SerialNumber.before(command.cmdSn, message.expCmdSn())) {
                core.endTask(command);
            }
        }
        asking.answerPing(message.lun(), BasicHeader.TAG_RESERVED);
    }

    /** A Reject: whose header comes back in its data segment? RFC 7143 §7.3, §11.17. */
    void onReject(Reject reject, ByteBuffer data) throws Violated {
        int at = data.position();
        if (data.remaining() < BasicHeader.HEADER_BYTES) {
            throw Violated.malformed(Opcode.REJECT, "it does not say what was rejected");
        }
        Request request = core.sent(BasicHeader.initiatorTaskTag(data, at));
        int opcode = BasicHeader.opcode(data, at);
        // For Data-Out, a status follows for the task that it belongs to. RFC 7143 §7.3.
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
            core.finish(request, Failure.rejected(reject.reason()));
        }
    }

    private void onRejectedCommand(Command command, int cmdSn, Reject reject) {
        if (command.cmdSn != cmdSn || command == core.receiving) {
            return;
        }
        core.finish(command, Failure.rejected(reject.reason()));
        boolean counted = SerialNumber.before(cmdSn, reject.expCmdSn());
        if (!command.immediate && !counted) {
            asking.ask(Ping.plug(cmdSn));
        }
    }
}

package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.connection.BurstQueue.Burst;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataOutView;
import org.lunarsan.iscsi.pdu.LogoutReason;
import org.lunarsan.iscsi.pdu.LogoutRequest;
import org.lunarsan.iscsi.pdu.ManagementFunction;
import org.lunarsan.iscsi.pdu.NopOut;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiCommandView;
import org.lunarsan.iscsi.pdu.TaskManagementRequest;
import org.lunarsan.iscsi.pdu.TextRequest;
import org.lunarsan.iscsi.session.InitiatorSession;

/**
 * Encodes the PDUs of an initiator: each request takes its numbers when it is encoded, on demand of
 * the writer.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class PduEncoder {
    private final ConnectionState state;

    PduEncoder(ConnectionState state) {
        this.state = state;
    }

    /**
     * Encodes the next PDU that is due, with its header segments in {@code head}. False: none is
     * due.
     */
    boolean next(long now, ByteBuffer head, Outgoing out) {
        ConnectionState.Answer answer = state.loggingOut == null ? state.answers.pollFirst() : null;
        if (answer != null) {
            nopOut(head, Opcode.NOP_OUT | Opcode.IMMEDIATE, 0, answer.lun(),
                    BasicHeader.TAG_RESERVED, answer.targetTransferTag(),
                    state.session.currentCmdSn());
            return true;
        }
        for (Request immediate = state.immediate.poll(); immediate != null;
                immediate = state.immediate.poll()) {
            if (state.loggingOut != null) {
                state.finish(immediate, Failure.LOGGED_OUT);
            } else if (send(now, immediate, state.session.currentCmdSn(), head, out)) {
                return true;
            }
        }
        return nextWaiting(now, head, out) || nextDataOut(head, out);
    }

    private boolean nextWaiting(long now, ByteBuffer head, Outgoing out) {
        if (state.waiting.isEmpty() || state.loggingOut != null) {
            return false;
        }
        long cmdSn = state.session.takeCmdSn(state.cid);
        return cmdSn != InitiatorSession.NO_NUMBER
                && send(now, state.waiting.poll(), (int) cmdSn, head, out);
    }

    private boolean send(long now, Request request, int cmdSn, ByteBuffer head, Outgoing out) {
        request.state = Request.SENT;
        request.cmdSn = cmdSn;
        return switch (request) {
            case Command command -> sendCommand(command, head, out);
            case Management management -> sendManagement(management, head);
            case Ping ping -> sendPing(now, ping, head, out);
            case TextExchange text -> sendText(text, head, out);
            case Logout logout -> sendLogout(now, logout, head);
        };
    }

    /**
     * Encodes a command with as much immediate and unsolicited data as was negotiated: a target
     * expects whole first bursts (RFC 7143 §4.2.5.2, §11.4.7.2, §13.10, §13.11, §13.14).
     */
    private boolean sendCommand(Command command, ByteBuffer head, Outgoing out) {
        int total = command.dataOutBytes();
        int first = Math.min(total, state.agreed.firstBurstBytes());
        int immediate = !state.agreed.immediateData() ? 0
                : Math.min(first, state.parameters.sendDataSegmentBytesMax());
        int unsolicited = state.agreed.initialR2t() ? immediate : first;
        encode(command, head, immediate, unsolicited > immediate);
        if (immediate > 0) {
            out.data(command.dataOutBuffer(), command.dataOutAt(), immediate, command);
        }
        command.asked.reset(unsolicited);
        if (unsolicited > immediate) {
            state.bursts.add(command, BasicHeader.TAG_RESERVED, 0, immediate, unsolicited);
        }
        return true;
    }

    private void encode(Command command, ByteBuffer head, int immediateBytes, boolean dataFollows) {
        int at = head.position();
        head.position(at + BasicHeader.HEADER_BYTES);
        byte[] cdb = command.cdb();
        long bidirectional = command.isBidirectional() ? command.dataInBytesMax()
                : CommandSegments.NO_READ_LENGTH;
        int ahsWords = CommandSegments.encode(cdb, bidirectional, head);
        boolean reads = command.dataInBytesMax() > 0;
        boolean writes = command.dataOutBytes() > 0;
        int flags = (dataFollows ? 0 : ScsiCommand.FINAL) | (reads ? ScsiCommand.READ : 0)
                | (writes ? ScsiCommand.WRITE : 0)
                | command.attribute() & ScsiCommand.ATTRIBUTE_MASK;
        int priority = state.agreed.protocolLevel() >= 2 ? command.priority() << 4 : 0;
        ScsiCommandView.encode(head, at, first(Opcode.SCSI_COMMAND, command.immediate), flags,
                priority, ahsWords, immediateBytes, command.lun(), command.tag,
                writes ? command.dataOutBytes() : command.dataInBytesMax(), command.cmdSn,
                state.expStatSn, cdb);
    }

    private boolean sendManagement(Management management, ByteBuffer head) {
        int referencedTag = BasicHeader.TAG_RESERVED;
        int refCmdSn = 0;
        Command task = management.referenced;
        if (task != null) {
            if (state.slots.find(management.referencedTag) != task) {
                // The task ended while the function waited to be sent.
                management.response = RequestSubmitter.withoutTask(management.function);
                state.finish(management, null);
                return false;
            }
            referencedTag = management.referencedTag;
            // RFC 7143 §11.5.5: for a task of an immediate command, RefCmdSN is the function's own
            // CmdSN.
            refCmdSn = task.immediate ? management.cmdSn : task.cmdSn;
        }
        if (ManagementFunction.isMultiTask(management.function) && state.hasFastAbort()) {
            pause(management);
        }
        new TaskManagementRequest(first(Opcode.TASK_MANAGEMENT_REQUEST, true),
                BasicHeader.FINAL | management.function, 0, 0, management.lun, management.tag,
                referencedTag, management.cmdSn, state.expStatSn, refCmdSn, 0).encode(head);
        return true;
    }

    /**
     * Pauses the data of affected tasks. RFC 7143 §4.2.3.4 a): the initiator sends no more Data-Out
     * PDUs for them on the issuing connection once the function is sent. If the function fails,
     * they continue.
     */
    private void pause(Management by) {
        for (int at = 0; at < state.slots.capacity(); at++) {
            if (state.slots.at(at) instanceof Command command
                    && ControlPduHandler.isCovered(command, by, by.cmdSn)) {
                command.pausedBy = by;
            }
        }
    }

    private boolean sendPing(long now, Ping ping, ByteBuffer head, Outgoing out) {
        int bytes = ping.data.length;
        if (ping.keepAlive) {
            state.timers.pinged = now;
        }
        nopOut(head, first(Opcode.NOP_OUT, !ping.fillsGap), bytes, 0, ping.tag,
                BasicHeader.TAG_RESERVED, ping.fillsGap ? ping.gapCmdSn : ping.cmdSn);
        if (bytes > 0) {
            out.data(RequestSubmitter.segment(ping.data), 0, bytes, ping);
        }
        return true;
    }

    private void nopOut(ByteBuffer head, int first, int bytes, long lun, int tag,
            int targetTransferTag, int cmdSn) {
        new NopOut(first, BasicHeader.FINAL, 0, bytes, lun, tag, targetTransferTag, cmdSn,
                state.expStatSn).encode(head);
    }

    private boolean sendText(TextExchange text, ByteBuffer head, Outgoing out) {
        int bytes = text.continues ? 0 : text.text.length;
        new TextRequest(Opcode.TEXT_REQUEST, TextRequest.FINAL, 0, bytes, text.lun, text.tag,
                text.targetTransferTag, text.cmdSn, state.expStatSn).encode(head);
        if (bytes > 0) {
            out.data(RequestSubmitter.segment(text.text), 0, bytes, text);
        }
        text.continues = false;
        return true;
    }

    private boolean sendLogout(long now, Logout logout, ByteBuffer head) {
        boolean ofSession = logout.reason == LogoutReason.CLOSE_SESSION;
        new LogoutRequest(first(Opcode.LOGOUT_REQUEST, true), BasicHeader.FINAL | logout.reason, 0,
                0, logout.tag, ofSession ? 0 : logout.cid, logout.cmdSn, state.expStatSn)
                .encode(head);
        state.timers.logsOut = true;
        state.timers.logoutBy = now + state.limits.logoutNanos();
        if (ofSession) {
            state.session.loggingOut(state.cid);
        }
        if (logout.concerns(state.cid)) {
            state.loggingOut = logout;
            state.endData();
        }
        return true;
    }

    /** Encodes the next Data-Out on demand, so that waiting data needs no memory. */
    private boolean nextDataOut(ByteBuffer head, Outgoing out) {
        Burst burst = state.bursts.next();
        if (burst == null) {
            return false;
        }
        Command command = burst.command;
        int from = burst.atBytes;
        int bytes = Math.min(burst.endBytes - from, state.parameters.sendDataSegmentBytesMax());
        boolean isLast = from + bytes == burst.endBytes;
        int at = head.position();
        head.position(at + BasicHeader.HEADER_BYTES);
        DataOutView.encode(head, at, Opcode.DATA_OUT, isLast ? BasicHeader.FINAL : 0, 0, bytes,
                burst.lun, command.tag, burst.targetTransferTag, state.expStatSn, burst.dataSn,
                from);
        out.data(command.dataOutBuffer(), command.dataOutAt() + from, bytes, command);
        burst.atBytes = from + bytes;
        burst.dataSn++;
        if (isLast) {
            command.r2tsOpen -= burst.targetTransferTag == BasicHeader.TAG_RESERVED ? 0 : 1;
            state.bursts.remove(burst);
        }
        return true;
    }

    private static int first(int opcode, boolean immediate) {
        return immediate ? opcode | Opcode.IMMEDIATE : opcode;
    }
}

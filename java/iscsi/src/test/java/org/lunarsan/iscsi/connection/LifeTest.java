package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.pdu.AsyncEvent;
import org.lunarsan.iscsi.pdu.AsyncMessage;
import org.lunarsan.iscsi.pdu.LogoutReason;
import org.lunarsan.iscsi.pdu.LogoutRequest;
import org.lunarsan.iscsi.pdu.LogoutResponse;
import org.lunarsan.iscsi.pdu.LogoutResult;
import org.lunarsan.iscsi.pdu.NopIn;
import org.lunarsan.iscsi.pdu.NopOut;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.Reject;
import org.lunarsan.iscsi.pdu.RejectReason;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.TextRequest;
import org.lunarsan.iscsi.pdu.TextResponse;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.text.TargetRecord;

/** Pings, texts, logouts, events, rejects and timers of a connection. */
class LifeTest {
    private static NopIn pong(Rig rig, int tag, int bytes) {
        return new NopIn(Opcode.NOP_IN, 0x80, 0, bytes, 0, tag, Rig.TAG_NONE, rig.statSn++,
                rig.expCmdSn, rig.maxCmdSn);
    }

    private static AsyncMessage event(Rig rig, int event, int parameter3) {
        return new AsyncMessage(Opcode.ASYNC_MESSAGE, 0x80, 0, 0, 0, Rig.TAG_NONE, rig.statSn++,
                rig.expCmdSn, rig.maxCmdSn, event, 0, 1, 2, parameter3);
    }

    private static LogoutResponse loggedOut(Rig rig, int tag) {
        return new LogoutResponse(Opcode.LOGOUT_RESPONSE, 0x80, 0, 0, 0, tag, rig.statSn++,
                rig.expCmdSn, rig.maxCmdSn, 2, 20);
    }

    /** Goal: a ping is immediate, and its answer echoes the data. RFC 7143 §11.18. */
    @Test
    void ping() {
        Rig rig = new Rig();
        Ping ping = new Ping(new byte[] {1, 2, 3});
        rig.submit(ping);
        NopOut sent = rig.next(NopOut.class);
        assertTrue(sent.isImmediate());
        assertEquals(100, sent.cmdSn());
        rig.gets(pong(rig, sent.initiatorTaskTag(), 3), new byte[] {1, 2, 3});
        rig.answered(ping);
        rig.submit(ping);
        sent = rig.next(NopOut.class);
        rig.gets(pong(rig, sent.initiatorTaskTag(), 3), new byte[] {1, 2, 4});
        assertInstanceOf(Violation.Malformed.class, rig.violation());
    }

    /** Goal: the target's ping is answered with its tags; one that requires no answer gets none. */
    @Test
    void pinged() {
        Rig rig = new Rig();
        rig.gets(new NopIn(Opcode.NOP_IN, 0x80, 0, 0, 5, Rig.TAG_NONE, 0x77, rig.statSn,
                rig.expCmdSn, rig.maxCmdSn));
        NopOut answer = rig.next(NopOut.class);
        assertEquals(0x77, answer.targetTransferTag());
        assertEquals(Rig.TAG_NONE, answer.initiatorTaskTag());
        assertEquals(5, answer.lun());
        rig.gets(new NopIn(Opcode.NOP_IN, 0x80, 0, 0, 0, Rig.TAG_NONE, Rig.TAG_NONE, rig.statSn,
                rig.expCmdSn, rig.maxCmdSn));
        assertNull(rig.next());
    }

    /**
     * Goal: a silent target is pinged; if it stays silent, the connection ends, and no request is
     * lost.
     */
    @Test
    void silence() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        rig.next(ScsiCommand.class);
        assertEquals(5 * Rig.SECOND, rig.connection.nanosToWait(rig.now));
        rig.now += 5 * Rig.SECOND - 1;
        assertNull(rig.next());
        rig.now += 1;
        NopOut ping = rig.next(NopOut.class);
        rig.gets(pong(rig, ping.initiatorTaskTag(), 0));
        assertEquals(5 * Rig.SECOND, rig.connection.nanosToWait(rig.now));
        rig.nothingCompletes();
        rig.now += 5 * Rig.SECOND;
        rig.next(NopOut.class);
        rig.now += 5 * Rig.SECOND;
        assertNull(rig.next());
        assertEquals(new CloseReason.TimedOut("a ping"), rig.closed());
        rig.failed(read, Failure.Kind.LOST);
        assertEquals(InitiatorConnection.FOREVER, rig.connection.nanosToWait(rig.now));
    }

    /** Goal: a text continues under its tag until the target has sent everything; others wait. */
    @Test
    void texts() throws Exception {
        Rig rig = new Rig();
        TextExchange first = TextExchange.sendTargets("All");
        TextExchange second = TextExchange.sendTargets("");
        rig.submit(first);
        rig.submit(second);
        TextRequest sent = rig.next(TextRequest.class);
        assertNull(rig.next(), "one exchange at a time");
        byte[] text = "TargetName=iqn.a\0TargetAddress=h:1,2\0TargetName=iqn.b\0".getBytes("UTF-8");
        rig.gets(new TextResponse(Opcode.TEXT_RESPONSE, TextResponse.CONTINUE, 0, 20, 3,
                sent.initiatorTaskTag(), 0x99, rig.statSn++, ++rig.expCmdSn, rig.maxCmdSn),
                ByteBuffer.allocate(20).put(text, 0, 20).array());
        TextRequest more = rig.next(TextRequest.class);
        assertEquals(sent.initiatorTaskTag(), more.initiatorTaskTag());
        assertEquals(0x99, more.targetTransferTag());
        assertEquals(3, more.lun());
        assertEquals(0, more.dataSegmentLength());
        byte[] rest = new byte[text.length - 20];
        System.arraycopy(text, 20, rest, 0, rest.length);
        rig.gets(new TextResponse(Opcode.TEXT_RESPONSE, TextResponse.FINAL, 0, rest.length, 0,
                sent.initiatorTaskTag(), Rig.TAG_NONE, rig.statSn++, ++rig.expCmdSn,
                rig.maxCmdSn), rest);
        rig.answered(first);
        assertEquals(2, TargetRecord.parse(first.answer()).size());
        assertEquals("SendTargets=".length() + 1,
                rig.next(TextRequest.class).dataSegmentLength());
        rig.connection.readerStopped();
        rig.failed(second, Failure.Kind.LOST);
    }

    /** Goal: a logout is answered, pending requests fail, and the connection closes. */
    @Test
    void logout() {
        Rig rig = new Rig();
        Command sent = Rig.write(100_000);
        Command waits = Rig.read(8);
        rig.submit(sent);
        rig.next(ScsiCommand.class);
        rig.submit(waits);
        Logout logout = new Logout(LogoutReason.CLOSE_SESSION, 1);
        rig.submit(logout);
        rig.failed(waits, Failure.Kind.REFUSED);
        LogoutRequest request = rig.next(LogoutRequest.class);
        assertEquals(LogoutReason.CLOSE_SESSION, request.reason());
        assertEquals(0, request.cid());
        assertNull(rig.next(), "no data behind a logout");
        assertFalse(rig.connection.submit(Rig.read(8)));
        rig.gets(loggedOut(rig, request.initiatorTaskTag()));
        rig.answered(logout);
        assertEquals(20, logout.timeToRetainSeconds());
        rig.failed(sent, Failure.Kind.LOGGED_OUT);
        assertInstanceOf(CloseReason.LoggedOut.class, rig.closed());
        assertEquals(ConnectionEnding.SESSION_LOGOUT, rig.session.ending().orElseThrow());
    }

    /** Goal: a logout that is not answered ends the connection all the same. */
    @Test
    void logoutTimesOut() {
        Rig rig = new Rig();
        Logout logout = new Logout(LogoutReason.CLOSE_CONNECTION, 1);
        rig.submit(logout);
        rig.next(LogoutRequest.class);
        assertEquals(5 * Rig.SECOND, rig.connection.nanosToWait(rig.now));
        rig.now += 5 * Rig.SECOND;
        assertNull(rig.next());
        rig.failed(logout, Failure.Kind.LOST);
        assertEquals(new CloseReason.TimedOut("a logout"), rig.closed());
    }

    /**
     * Goal: a requested logout is sent when all requests are over, or before the deadline. §11.9.1.
     */
    @Test
    void anAsyncMessageRequestsALogout() {
        for (boolean inTime : new boolean[] {true, false}) {
            Rig rig = new Rig(Rig.parameters(false, true, 1),
                    new ConnectionLimits(0, 1, Rig.SECOND, 9, 64), new InitiatorSession(1, 100), 1);
            Command read = Rig.read(8);
            rig.submit(read);
            int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
            rig.gets(event(rig, AsyncEvent.LOGOUT_REQUESTED, 10));
            assertFalse(rig.connection.submit(Rig.read(8)));
            assertNull(rig.next(), "a command is pending");
            if (inTime) {
                rig.gets(rig.lastDataIn(tag, 0, 0, 8, 0, 0));
                rig.answered(read);
            } else {
                assertEquals(9 * Rig.SECOND, rig.connection.nanosToWait(rig.now));
                rig.now += 9 * Rig.SECOND;
            }
            LogoutRequest request = rig.next(LogoutRequest.class);
            assertEquals(LogoutReason.CLOSE_CONNECTION, request.reason());
            rig.gets(loggedOut(rig, request.initiatorTaskTag()));
            assertEquals(inTime ? null : read, rig.connection.pollCompleted());
            assertInstanceOf(CloseReason.LoggedOut.class, rig.closed());
        }
    }

    /** Goal: a target that requests a logout is pinged meanwhile, and not waited for over hours. */
    @Test
    void drainingHasAnEnd() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        rig.next(ScsiCommand.class);
        rig.gets(event(rig, AsyncEvent.LOGOUT_REQUESTED, 0xffff));
        int pings = 0;
        for (Pdu sent = null; !(sent instanceof LogoutRequest); sent = rig.next()) {
            if (sent instanceof NopOut ping) {
                pings++;
                rig.gets(pong(rig, ping.initiatorTaskTag(), 0));
            }
            assertTrue(rig.connection.nanosToWait(rig.now) <= 5 * Rig.SECOND);
            rig.now += rig.connection.nanosToWait(rig.now);
        }
        assertEquals(11, pings, "one each five seconds, for a minute less one second");
        rig = new Rig();
        read = Rig.read(8);
        rig.submit(read);
        rig.next(ScsiCommand.class);
        rig.gets(event(rig, AsyncEvent.LOGOUT_REQUESTED, 0xffff));
        rig.now += 5 * Rig.SECOND;
        rig.next(NopOut.class);
        rig.now += 5 * Rig.SECOND;
        assertNull(rig.next());
        rig.failed(read, Failure.Kind.LOST);
        assertEquals(new CloseReason.TimedOut("a ping"), rig.closed());
    }

    /** Goal: after a failed logout the outcome of commands is unknown. RFC 7143 §11.15.1. */
    @Test
    void logoutFails() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        rig.next(ScsiCommand.class);
        Logout logout = new Logout(LogoutReason.CLOSE_CONNECTION, 1);
        rig.submit(logout);
        LogoutResponse done = loggedOut(rig, rig.next(LogoutRequest.class).initiatorTaskTag());
        rig.gets(new LogoutResponse(Opcode.LOGOUT_RESPONSE, 0x80, LogoutResult.CLEANUP_FAILED, 0,
                0, done.initiatorTaskTag(), done.statSn(), rig.expCmdSn, rig.maxCmdSn, 2, 20));
        rig.answered(logout);
        assertEquals(LogoutResult.CLEANUP_FAILED, logout.response());
        rig.failed(read, Failure.Kind.LOST);
        assertInstanceOf(CloseReason.PeerClosed.class, rig.closed());
    }

    /** Goal: events are reported with their fields, and sense data is extracted. */
    @Test
    void events() {
        Rig rig = new Rig();
        byte[] data = {0, 2, 0x70, 0, 9, 9};
        rig.gets(new AsyncMessage(Opcode.ASYNC_MESSAGE, 0x80, 0, 6, 4, Rig.TAG_NONE, rig.statSn++,
                rig.expCmdSn, rig.maxCmdSn, AsyncEvent.SCSI_EVENT, 0, 1, 2, 3), data);
        ConnectionEvent.Asynchronous event = assertInstanceOf(ConnectionEvent.Asynchronous.class,
                rig.connection.pollEvent());
        assertEquals(4, event.lun());
        assertArrayEquals(new byte[] {0x70, 0}, event.sense());
        rig.gets(event(rig, AsyncEvent.RENEGOTIATE, 0));
        assertEquals(0, rig.next(TextRequest.class).dataSegmentLength());
    }

    /** Goal: with FastAbort, event 5 ends the unit's tasks and is acknowledged. §11.9.1. */
    @Test
    void tasksTerminated() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        rig.expCmdSn = 101;
        rig.gets(event(rig, AsyncEvent.TASKS_TERMINATED, 0));
        rig.failed(read, Failure.Kind.ABORTED);
        NopOut acknowledgement = rig.next(NopOut.class);
        assertEquals(Rig.TAG_NONE, acknowledgement.targetTransferTag());
        assertEquals(Receive.Destination.DISCARD, rig.gets(rig.dataIn(tag, 0, 0, 8)));
        rig.gets(rig.response(tag, 0));
        rig.gets(rig.response(tag, 0));
        assertInstanceOf(Violation.UnknownTag.class, rig.violation());
    }

    /** Goal: a rejected command completes, and a ping takes its CmdSN. RFC 7143 §7.3. */
    @Test
    void rejectedCommand() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        ScsiCommand sent = rig.next(ScsiCommand.class);
        ByteBuffer bad = ByteBuffer.allocate(48);
        sent.encode(bad);
        Reject reject = new Reject(Opcode.REJECT, 0x80, RejectReason.INVALID_PDU_FIELD, 0, 48,
                Rig.TAG_NONE, rig.statSn++, rig.expCmdSn, rig.maxCmdSn, 0);
        rig.gets(reject, bad.array());
        rig.failed(read, Failure.Kind.REJECTED);
        NopOut fillsGap = rig.next(NopOut.class);
        assertFalse(fillsGap.isImmediate());
        assertEquals(sent.cmdSn(), fillsGap.cmdSn());
        rig.gets(pong(rig, fillsGap.initiatorTaskTag(), 0));
        rig.nothingCompletes();
        assertTrue(rig.connection.isIdle());
    }

    /** Goal: the window holds requests back, and opens without action of the caller. */
    @Test
    void window() {
        Rig rig = new Rig();
        Command[] reads = new Command[40];
        for (int at = 0; at < reads.length; at++) {
            reads[at] = Rig.read(8);
            rig.submit(reads[at]);
        }
        int sent = 0;
        while (rig.next() != null) {
            sent++;
        }
        assertEquals(32, sent);
        int wakes = rig.wakes;
        rig.gets(rig.lastDataIn(reads[0].tag, 0, 0, 8, 0, 0));
        rig.answered(reads[0]);
        assertTrue(rig.wakes > wakes, "the writer is woken");
        assertEquals(132, rig.next(ScsiCommand.class).cmdSn());
        assertNull(rig.next());
        Command immediate = Rig.read(8).immediate(true);
        rig.submit(immediate);
        assertEquals(133, rig.next(ScsiCommand.class).cmdSn(), "ahead of the window");
    }

    /**
     * Goal: the number of pending requests is bounded, and a pending one cannot be submitted again.
     */
    @Test
    void limits() {
        Rig rig = new Rig(Rig.parameters(false, true, 1),
                new ConnectionLimits(0, 1, 1, 2, 64),
                new InitiatorSession(1, 100), 1);
        Command first = Rig.read(8);
        rig.submit(first);
        assertThrows(IllegalStateException.class, () -> rig.connection.submit(first));
        assertThrows(IllegalStateException.class, () -> first.lun(1));
        rig.submit(Rig.read(8));
        Command third = Rig.read(8);
        assertFalse(rig.connection.submit(third));
        assertEquals(Failure.Kind.REFUSED, third.failure().kind());
        assertEquals(InitiatorConnection.FOREVER, rig.connection.nanosToWait(rig.now));
        rig.submit(new Logout(LogoutReason.CLOSE_CONNECTION, 1));
    }
}

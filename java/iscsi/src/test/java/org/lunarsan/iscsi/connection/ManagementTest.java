package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.pdu.DataOut;
import org.lunarsan.iscsi.pdu.ManagementFunction;
import org.lunarsan.iscsi.pdu.ManagementResponse;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.TaskManagementRequest;
import org.lunarsan.iscsi.pdu.TaskManagementResponse;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.InitiatorSession;

/** Task management functions, and their effect on several connections. RFC 7143 §11.5. */
class ManagementTest {
    private static TaskManagementResponse answer(Rig rig, int tag, int response) {
        return new TaskManagementResponse(Opcode.TASK_MANAGEMENT_RESPONSE, 0x80, response, 0, 0,
                0x010203, tag, rig.statSn++, rig.expCmdSn, rig.maxCmdSn);
    }

    /** Goal: ABORT TASK names the task by tag and CmdSN; the task completes before it. */
    @Test
    void abortTask() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        ScsiCommand sent = rig.next(ScsiCommand.class);
        Management abort = new Management(ManagementFunction.ABORT_TASK, read);
        rig.submit(abort);
        TaskManagementRequest request = rig.next(TaskManagementRequest.class);
        assertEquals(ManagementFunction.ABORT_TASK, request.function());
        assertEquals(sent.initiatorTaskTag(), request.referencedTaskTag());
        assertEquals(sent.cmdSn(), request.refCmdSn());
        assertTrue(request.isImmediate());
        rig.gets(answer(rig, request.initiatorTaskTag(), ManagementResponse.FUNCTION_COMPLETE));
        rig.failed(read, Failure.Kind.ABORTED);
        rig.answered(abort);
        assertEquals(ManagementResponse.FUNCTION_COMPLETE, abort.response());
        assertEquals(0x010203, abort.information());
        assertTrue(rig.connection.isIdle());
    }

    /** Goal: a function on a task that was not sent, or is over, completes without the target. */
    @Test
    void completesLocallyWithoutTheTarget() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        Management abort = new Management(ManagementFunction.ABORT_TASK, read);
        rig.submit(abort);
        rig.failed(read, Failure.Kind.ABORTED);
        rig.answered(abort);
        assertEquals(ManagementResponse.FUNCTION_COMPLETE, abort.response());
        assertNull(rig.next());
        rig.submit(abort);
        rig.answered(abort);
        assertEquals(ManagementResponse.TASK_DOES_NOT_EXIST, abort.response());
        Management query = new Management(ManagementFunction.QUERY_TASK, read);
        rig.submit(query);
        rig.answered(query);
        assertEquals(ManagementResponse.FUNCTION_COMPLETE, query.response());
        rig.submit(read);
        rig.submit(query);
        rig.answered(query);
        rig.submit(abort);
        rig.failed(read, Failure.Kind.ABORTED);
    }

    /** Goal: if a task ends while the function waits, its reused command is not affected. */
    @Test
    void theTaskEndsFirst() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        Management abort = new Management(ManagementFunction.ABORT_TASK, read);
        rig.submit(abort);
        rig.gets(rig.lastDataIn(tag, 0, 0, 8, 0, 0));
        rig.answered(read);
        rig.submit(read);
        assertInstanceOf(ScsiCommand.class, rig.next());
        rig.answered(abort);
        assertEquals(ManagementResponse.TASK_DOES_NOT_EXIST, abort.response());
    }

    /** Goal: during a reset no number is assigned, and data pauses; if it fails, both continue. */
    @Test
    void resetThatFails() {
        Rig rig = new Rig();
        Command write = Rig.write(30_000);
        rig.submit(write);
        rig.next(ScsiCommand.class);
        Management reset = new Management(ManagementFunction.LOGICAL_UNIT_RESET, 0);
        rig.submit(reset);
        TaskManagementRequest request = rig.next(TaskManagementRequest.class);
        assertEquals(Rig.TAG_NONE, request.referencedTaskTag());
        rig.submit(Rig.read(8));
        assertNull(rig.next(), "neither data nor a command");
        rig.gets(answer(rig, request.initiatorTaskTag(),
                ManagementResponse.FUNCTION_NOT_SUPPORTED));
        rig.answered(reset);
        assertInstanceOf(ScsiCommand.class, rig.next());
        assertInstanceOf(DataOut.class, rig.next());
    }

    /** Goal: a reset ends the older tasks of its unit on all connections, before it completes. */
    @Test
    void resetOverTwoConnections() {
        InitiatorSession session = new InitiatorSession(1, 100);
        Rig one = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 1);
        Rig two = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 2);
        Command here = Rig.read(8);
        Command there = Rig.read(8);
        Command otherUnit = Rig.read(8).lun(1L << 48);
        one.submit(here);
        one.submit(otherUnit);
        two.submit(there);
        assertEquals(100, one.next(ScsiCommand.class).cmdSn());
        ScsiCommand sent = two.next(ScsiCommand.class);
        assertEquals(101, sent.cmdSn());
        one.next(ScsiCommand.class);
        assertFalse(sent.initiatorTaskTag() == here.tag, "tags are the session's");
        Management reset = new Management(ManagementFunction.LOGICAL_UNIT_RESET, 0);
        one.submit(reset);
        int tag = one.next(TaskManagementRequest.class).initiatorTaskTag();
        Command later = Rig.read(8);
        two.submit(later);
        assertNull(two.next(), "numbers are held back");
        int wakes = two.wakes;
        one.gets(answer(one, tag, ManagementResponse.FUNCTION_COMPLETE));
        one.failed(here, Failure.Kind.ABORTED);
        one.answered(reset);
        one.nothingCompletes();
        assertTrue(two.wakes > wakes);
        assertEquals(103, two.next(ScsiCommand.class).cmdSn());
        two.failed(there, Failure.Kind.ABORTED);
        two.gets(two.response(sent.initiatorTaskTag(), 0));
        two.nothingCompletes();
        assertFalse(two.connection.isClosed(), "a late response is no news");
    }

    /** Goal: a task ended by another connection completes only after its buffer is filled. */
    @Test
    void resetWhileDataArrives() {
        InitiatorSession session = new InitiatorSession(1, 100);
        Rig one = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 1);
        Rig two = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 2);
        Command there = Rig.read(8);
        two.submit(there);
        int tag = two.next(ScsiCommand.class).initiatorTaskTag();
        ByteBuffer header = ByteBuffer.allocate(48);
        two.dataIn(tag, 0, 0, 8).encode(header);
        two.connection.onHeader(two.now, header.flip(), two.receive);
        Management reset = new Management(ManagementFunction.TARGET_WARM_RESET, 0);
        one.submit(reset);
        one.gets(answer(one, one.next(TaskManagementRequest.class).initiatorTaskTag(),
                ManagementResponse.FUNCTION_COMPLETE));
        one.answered(reset);
        assertNull(two.next());
        two.nothingCompletes();
        assertFalse(two.connection.isIdle(), "its buffer is being filled");
        two.connection.onPayload(two.now, Rig.NO_DATA, true);
        two.failed(there, Failure.Kind.ABORTED);
        two.nothingCompletes();
        assertTrue(two.connection.isIdle());
    }

    /** Goal: functions that need levels that were not negotiated are refused. */
    @Test
    void refused() {
        Rig rig = new Rig();
        assertFalse(rig.connection.submit(
                new Management(ManagementFunction.TASK_REASSIGN, Rig.read(8))));
        assertFalse(rig.connection.submit(new Management(ManagementFunction.ABORT_TASK, 0)));
    }

    /** Goal: a violation on one connection ends the session, and the other one with it. §7.7. */
    @Test
    void aViolationEndsAllConnections() {
        InitiatorSession session = new InitiatorSession(1, 100);
        Rig one = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 1);
        Rig two = new Rig(Rig.parameters(false, true, 1), ConnectionLimits.DEFAULT, session, 2);
        Command there = Rig.read(8);
        two.submit(there);
        two.next(ScsiCommand.class);
        one.connection.onHeaderDigestError();
        assertInstanceOf(Violation.HeaderDigest.class, one.violation());
        assertTrue(session.ending().isEmpty(), "the other connection is still there");
        assertNull(two.next());
        assertInstanceOf(CloseReason.Dropped.class, two.closed());
        two.failed(there, Failure.Kind.LOST);
        assertEquals(ConnectionEnding.VIOLATION, session.ending().orElseThrow());
    }
}

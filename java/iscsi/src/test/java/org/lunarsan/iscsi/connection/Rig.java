package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.Optional;
import java.util.OptionalInt;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ReadyToTransfer;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TaskReporting;

/** A connection under test; the test acts as its driver and its target. */
final class Rig {
    static final int TAG_NONE = BasicHeader.TAG_RESERVED;
    static final int SEGMENT = 8192;
    static final long SECOND = 1_000_000_000L;
    static final ByteBuffer NO_DATA = ByteBuffer.allocate(0);

    final InitiatorSession session;
    final InitiatorConnection connection;
    final Outgoing out = new Outgoing();
    final Receive receive = new Receive();
    final ByteBuffer head = ByteBuffer.allocate(Outgoing.HEADER_BYTES_MAX);
    int wakes;
    long now = -5;
    int statSn = 50;
    int expCmdSn = 100;
    int maxCmdSn = 131;

    Rig() {
        this(parameters(false, true, 1));
    }

    Rig(SessionParameters parameters) {
        this(parameters, ConnectionLimits.DEFAULT, new InitiatorSession(0x80L << 40, 100), 1);
    }

    Rig(SessionParameters parameters, ConnectionLimits limits, InitiatorSession session, int cid) {
        this.session = session;
        assertTrue(session.open(cid, () -> wakes++).isPresent());
        connection = new InitiatorConnection(now, session, cid, new Established(7, parameters,
                new ConnectionParameters(Digests.NONE, SEGMENT, SEGMENT), statSn, expCmdSn,
                maxCmdSn, OptionalInt.of(1), Optional.empty()), limits, () -> wakes++);
    }

    static SessionParameters parameters(boolean initialR2t, boolean immediate, int r2ts) {
        return new SessionParameters(SessionType.NORMAL, 2, initialR2t, immediate, 65_536, 32_768,
                2, 20, r2ts, true, true, 0, TaskReporting.FAST_ABORT, 2);
    }

    static Command read(int bytes) {
        return new Command().dataIn(ByteBuffer.allocate(bytes), 0, bytes);
    }

    static Command write(int bytes) {
        return new Command().dataOut(ByteBuffer.allocate(bytes), 0, bytes);
    }

    /** Returns the next PDU of the writer, or null; its data counts as sent at once. */
    Pdu next() {
        Pdu pdu = nextHeld();
        connection.sent(out);
        return pdu;
    }

    /** Works as {@link #next}, but the writer holds the data. */
    Pdu nextHeld() {
        head.clear();
        if (!connection.poll(now, head, out)) {
            return null;
        }
        head.flip();
        Pdu pdu = Pdu.decode(head);
        assertEquals(pdu.dataSegmentLength(), out.bytes());
        assertEquals(4 * pdu.totalAhsWords(), head.remaining());
        return pdu;
    }

    <T extends Pdu> T next(Class<T> kind) {
        return assertInstanceOf(kind, next());
    }

    /** Receives a PDU of the target. */
    Receive.Destination gets(Pdu pdu) {
        return gets(pdu, new byte[0]);
    }

    Receive.Destination gets(Pdu pdu, byte[] data) {
        ByteBuffer bytes = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        pdu.encode(bytes);
        connection.onHeader(now, bytes.flip(), receive);
        Receive.Destination destination = receive.destination();
        boolean hasPlace = destination != Receive.Destination.NOTHING
                && destination != Receive.Destination.CLOSED;
        if (hasPlace) {
            connection.onPayload(now, ByteBuffer.wrap(data), true);
        }
        return destination;
    }

    void submit(Request request) {
        assertTrue(connection.submit(request), () -> "" + request.failure());
    }

    void completes(Request request) {
        assertEquals(request, connection.pollCompleted());
    }

    void nothingCompletes() {
        assertNull(connection.pollCompleted());
    }

    void answered(Request request) {
        completes(request);
        assertNull(request.failure());
    }

    void failed(Request request, Failure.Kind kind) {
        completes(request);
        assertEquals(kind, request.failure().kind());
    }

    /** Checks that the connection was closed by a violation, and returns it. */
    Violation violation() {
        CloseReason reason = closed();
        return assertInstanceOf(CloseReason.Violated.class, reason).violation();
    }

    CloseReason closed() {
        ConnectionEvent event = connection.pollEvent();
        while (event instanceof ConnectionEvent.Asynchronous) {
            event = connection.pollEvent();
        }
        assertTrue(connection.isClosed());
        return assertInstanceOf(ConnectionEvent.Closed.class, event).reason();
    }

    ScsiResponse response(int tag, int status) {
        return response(tag, ScsiResponse.FINAL, status, 0, 0, 0);
    }

    ScsiResponse response(int tag, int flags, int status, int dataSns, int residual, int bytes) {
        return new ScsiResponse(Opcode.SCSI_RESPONSE, flags, 0, status, 0, bytes, 0, tag, 0,
                statSn++, ++expCmdSn, ++maxCmdSn, dataSns, 0, residual);
    }

    DataIn dataIn(int tag, int number, int offset, int bytes) {
        return new DataIn(Opcode.DATA_IN, 0, 0, 0, bytes, 0, tag, TAG_NONE, 0, expCmdSn, maxCmdSn,
                number, offset, 0);
    }

    /** Builds the last Data-In, with a good status. */
    DataIn lastDataIn(int tag, int number, int offset, int bytes, int flags, int residual) {
        return new DataIn(Opcode.DATA_IN, DataIn.FINAL | DataIn.STATUS | flags, 0, 0, bytes, 0, tag,
                TAG_NONE, statSn++, ++expCmdSn, ++maxCmdSn, number, offset, residual);
    }

    ReadyToTransfer r2t(int tag, int number, int offset, int bytes) {
        return new ReadyToTransfer(Opcode.READY_TO_TRANSFER, ReadyToTransfer.FINAL, 0, 0, 9, tag,
                0x70 + number, statSn, expCmdSn, maxCmdSn, number, offset, bytes);
    }
}

package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.pdu.AsyncMessage;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LogoutResponse;
import org.lunarsan.iscsi.pdu.NopIn;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Reject;
import org.lunarsan.iscsi.pdu.TaskManagementResponse;
import org.lunarsan.iscsi.pdu.TextResponse;
import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.InitiatorSession;

/**
 * One iSCSI connection in the initiator role, in full feature phase, without socket, threads or
 * clock. RFC 7143 §4.2, §11.
 *
 * <p>Contract:
 * <ul>
 * <li>The <b>reader</b> passes each header to {@link #onHeader}, puts the data segment at the place
 * that the call returns, then calls {@link #onPayload}. When its stream ends, for any reason, it
 * calls {@link #readerStopped}.
 * <li>The <b>writer</b> calls {@link #poll} until it returns false, sends the PDUs, and calls
 * {@link #sent} for each. When nothing is due, it waits until {@code wake} is called or
 * {@link #nanosToWait} have passed. When it stops, it returns its PDUs by {@link #sent}.
 * <li>Any <b>caller</b> passes requests to {@link #submit}.
 * <li>After any call, {@link #pollCompleted} returns completed requests; each accepted request
 * completes exactly once.
 * </ul>
 *
 * <p>It corresponds to the machine of the Rust crate, without its allocations per command: a
 * {@link Request} is the slot of its own task, and a PDU is encoded into the writer's buffer.
 *
 * <p>Threads: any, behind the lock of this connection, which is held for a short time; within it
 * the lock of the session is taken, never that of another connection. {@code wake} may be called
 * while it is held.
 */
public final class InitiatorConnection {
    /** Returned by {@link #nanosToWait}: nothing is due. */
    public static final long FOREVER = Timers.NEVER;

    private static final ByteBuffer EMPTY = ByteBuffer.allocate(0).asReadOnlyBuffer();

    private final Object lock = new Object();
    private final ConnectionState state;
    private final RequestSubmitter submitter;
    private final PduEncoder encoder;
    private final DataHandler dataHandler;
    private final ControlPduHandler controlHandler;
    private final TimerHandler timerHandler;
    /** The header whose control data segment is being received. */
    private final ByteBuffer control = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
    private Receive.Destination incoming = Receive.Destination.NOTHING;
    private int incomingOpcode;

    /**
     * Creates a connection whose login has completed; it joins its session.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param session the session in which it was opened
     * @param cid its connection ID
     * @param established result of its login
     * @param limits limits of the connection
     * @param wake called when the writer may have something to do, from any thread, perhaps with
     *        the lock of this connection held: it must neither block nor call this object
     */
    public InitiatorConnection(long now, InitiatorSession session, int cid,
            Established established, ConnectionLimits limits, Runnable wake) {
        state = new ConnectionState(session, cid, wake, limits,
                session.joined(cid, established.tsih(), established.session()),
                established.connection(), established.expStatSn());
        session.window(established.expCmdSn(), established.maxCmdSn());
        state.timers.lastReceived = now;
        submitter = new RequestSubmitter(state);
        encoder = new PduEncoder(state);
        dataHandler = new DataHandler(state);
        controlHandler = new ControlPduHandler(state, submitter);
        timerHandler = new TimerHandler(state, submitter, controlHandler);
    }

    /**
     * Submits a request.
     *
     * @param request owned by the caller until now
     * @return true if it was accepted; else {@link Request#failure} holds the reason, and the
     *         request does not complete
     * @throws IllegalStateException when the request is already pending
     */
    public boolean submit(Request request) {
        synchronized (lock) {
            return submitter.submit(request);
        }
    }

    /**
     * Returns the next completed request, which the caller owns again.
     *
     * @return the request, or {@code null} for none
     */
    public Request pollCompleted() {
        synchronized (lock) {
            return state.completed.poll();
        }
    }

    /**
     * Returns the next event: Asynchronous Messages, and at last the end of the connection.
     *
     * @return the oldest event, or {@code null} for none
     */
    public ConnectionEvent pollEvent() {
        synchronized (lock) {
            return state.events.pollFirst();
        }
    }

    /**
     * Encodes the next PDU that is due, and handles timeouts. Data-Out is created only by this
     * call.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param head receives the header segments at its position; at least
     *        {@link Outgoing#HEADER_BYTES_MAX} bytes must be left
     * @param out receives the data segment; has to be passed to {@link #sent} afterwards
     * @return whether there was a PDU
     */
    public boolean poll(long now, ByteBuffer head, Outgoing out) {
        out.clear();
        synchronized (lock) {
            timerHandler.takeMessages();
            timerHandler.onDeadline(now);
            submitter.logOutWhenDrained();
            return state.isOpen() && encoder.next(now, head, out);
        }
    }

    /**
     * Releases the data segment of a PDU that was sent or never will be: the writer does not use it
     * any more.
     *
     * @param out from {@link #poll}
     */
    public void sent(Outgoing out) {
        Request request = out.takeHolder();
        if (request != null) {
            synchronized (lock) {
                state.release(request);
            }
        }
    }

    /**
     * Replaces the data-out buffer of a command, whether the command is pending or not: later
     * results of {@link #poll} refer to the new buffer. The writer must not run {@link #poll}
     * meanwhile, and has to handle the segments that it still holds.
     *
     * @param command the command
     * @param buffer holds the same bytes
     * @param at index of the first byte
     */
    public void moveDataOut(Command command, ByteBuffer buffer, int at) {
        synchronized (lock) {
            command.moveDataOut(buffer, at);
        }
    }

    /**
     * Returns the time for which the writer may wait without being woken.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @return nanoseconds, or {@link #FOREVER}
     */
    public long nanosToWait(long now) {
        synchronized (lock) {
            return timerHandler.nanosToWait(now);
        }
    }

    /**
     * Returns the time since anything arrived; for a driver that cannot call {@link #poll}, because
     * its socket is full.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @return nanoseconds
     */
    public long nanosSilent(long now) {
        synchronized (lock) {
            return now - state.timers.lastReceived;
        }
    }

    /**
     * True when no request is pending and no data is due.
     *
     * @return whether it is idle
     */
    public boolean isIdle() {
        synchronized (lock) {
            return state.slots.used() == 0 && state.bursts.isEmpty();
        }
    }

    /**
     * True when the connection is over: nothing more is sent or read.
     *
     * @return whether it is closed
     */
    public boolean isClosed() {
        synchronized (lock) {
            return !state.isOpen();
        }
    }

    /**
     * Processes the header of a PDU whose digest matched.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param header its Basic Header Segment, from the position; not retained
     * @param receive receives the destination of the data segment
     */
    public void onHeader(long now, ByteBuffer header, Receive receive) {
        synchronized (lock) {
            receive.set(Receive.Destination.NOTHING);
            if (!state.isOpen()) {
                receive.set(Receive.Destination.CLOSED);
                return;
            }
            state.timers.lastReceived = now;
            try {
                dispatch(now, header, header.position(), receive);
            } catch (Violated violated) {
                state.violated(violated);
                receive.set(Receive.Destination.CLOSED);
            }
            incoming = receive.destination();
        }
    }

    private void dispatch(long now, ByteBuffer header, int at, Receive receive) throws Violated {
        int opcode = BasicHeader.opcode(header, at);
        int bytes = BasicHeader.dataSegmentLength(header, at);
        int bytesMax = state.parameters.receiveDataSegmentBytesMax();
        incomingOpcode = opcode;
        if (bytes > bytesMax) {
            throw new Violated(new Violation.TooLong(opcode, bytes, bytesMax));
        }
        switch (opcode) {
            case Opcode.DATA_IN -> {
                dataHandler.onDataIn(header, at, receive);
                return;
            }
            case Opcode.READY_TO_TRANSFER -> {
                dataHandler.onReadyToTransfer(header, at);
                return;
            }
            case Opcode.NOP_IN -> controlHandler.onNopInHeader(NopIn.decode(header.duplicate()));
            default -> checkResponse(opcode, header, at);
        }
        control.clear().put(0, header, at, BasicHeader.HEADER_BYTES);
        if (bytes == 0) {
            onControl(now, EMPTY);
        } else {
            receive.set(Receive.Destination.CONTROL);
        }
    }

    /** Checks the numbers of all PDUs that consume a StatSN. */
    private void checkResponse(int opcode, ByteBuffer header, int at) throws Violated {
        switch (opcode) {
            case Opcode.SCSI_RESPONSE -> dataHandler.onResponseHeader(header, at);
            case Opcode.TASK_MANAGEMENT_RESPONSE, Opcode.TEXT_RESPONSE, Opcode.LOGOUT_RESPONSE,
                    Opcode.ASYNC_MESSAGE, Opcode.REJECT -> {
                // Checked when the PDU is complete.
            }
            default -> throw new Violated(new Violation.Misplaced(opcode));
        }
        state.onStatSn(BasicHeader.statSn(header, at));
        state.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
    }

    /**
     * Processes the data segment of the last header, which is complete at the destination that
     * {@link #onHeader} returned.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param data the segment, from the position to the limit, for
     *        {@link Receive.Destination#CONTROL}; ignored for other destinations
     * @param digestOk whether the data digest matched, if there is one
     */
    public void onPayload(long now, ByteBuffer data, boolean digestOk) {
        synchronized (lock) {
            Receive.Destination destination = incoming;
            Command command = state.receiving;
            boolean isOver = state.receivingIsOver;
            incoming = Receive.Destination.NOTHING;
            state.receiving = null;
            if (state.isOpen()) {
                state.timers.lastReceived = now;
                try {
                    if (!digestOk && destination != Receive.Destination.NOTHING) {
                        throw new Violated(new Violation.DataDigest(incomingOpcode));
                    }
                    onSegment(now, destination, command, isOver, data);
                } catch (Violated violated) {
                    state.violated(violated);
                }
            }
            if (command != null) {
                state.release(command);
            }
        }
    }

    private void onSegment(long now, Receive.Destination destination, Command command,
            boolean isOver, ByteBuffer data) throws Violated {
        if (destination == Receive.Destination.CONTROL) {
            onControl(now, data);
        } else if (destination == Receive.Destination.COMMAND && isOver) {
            state.endTask(command);
        } else if (destination == Receive.Destination.COMMAND) {
            dataHandler.onDataInDone(command);
        }
    }

    /**
     * Processes a whole PDU other than Data-In and R2T; its numbers were checked with its header.
     */
    private void onControl(long now, ByteBuffer data) throws Violated {
        control.clear();
        switch (BasicHeader.opcode(control, 0)) {
            case Opcode.SCSI_RESPONSE -> dataHandler.onResponse(control, 0, data);
            case Opcode.TASK_MANAGEMENT_RESPONSE ->
                controlHandler.onManagement(TaskManagementResponse.decode(control));
            case Opcode.TEXT_RESPONSE -> controlHandler.onText(TextResponse.decode(control), data);
            case Opcode.LOGOUT_RESPONSE -> controlHandler.onLogout(LogoutResponse.decode(control));
            case Opcode.ASYNC_MESSAGE ->
                controlHandler.onAsync(now, AsyncMessage.decode(control), data);

            case Opcode.REJECT -> controlHandler.onReject(Reject.decode(control), data);
            default -> controlHandler.onPong(NopIn.decode(control), data);
        }
    }

    /** Returns the next StatSN, so that tests can continue from any state. */
    int expStatSnForTests() {
        synchronized (lock) {
            return state.expStatSn;
        }
    }

    /**
     * Ends the connection after a header digest that did not match; framing is lost. RFC 7143 §7.8.
     */
    public void onHeaderDigestError() {
        synchronized (lock) {
            state.violated(new Violated(new Violation.HeaderDigest()));
        }
    }

    /**
     * Ends the connection because a data segment is longer than we declared, as reported by
     * {@link org.lunarsan.iscsi.framing.Deframer.Event#TOO_LONG}.
     *
     * @param header its Basic Header Segment, from the position
     */
    public void onTooLong(ByteBuffer header) {
        int at = header.position();
        synchronized (lock) {
            state.violated(new Violated(new Violation.TooLong(BasicHeader.opcode(header, at),
                    BasicHeader.dataSegmentLength(header, at),
                    state.parameters.receiveDataSegmentBytesMax())));
        }
    }

    /**
     * Called when the target closed its side, or the socket failed: the reader has stopped, and
     * fills no buffer.
     */
    public void readerStopped() {
        synchronized (lock) {
            state.shut(new CloseReason.PeerClosed(), ConnectionEnding.LOST, Failure.LOST);
            Command command = state.receiving;
            state.receiving = null;
            if (command != null) {
                state.release(command);
            }
        }
    }

    /**
     * Called when the socket failed under the writer, or the driver ends the connection. Requests
     * held by the reader or the writer complete when they release them.
     */
    public void onLost() {
        synchronized (lock) {
            state.shut(new CloseReason.PeerClosed(), ConnectionEnding.LOST, Failure.LOST);
        }
    }
}

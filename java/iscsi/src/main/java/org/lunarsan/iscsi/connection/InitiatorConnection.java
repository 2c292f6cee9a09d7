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
import org.lunarsan.iscsi.session.Ending;
import org.lunarsan.iscsi.session.InitiatorSession;

/**
 * One iSCSI connection in the initiator role, in full feature phase: no socket, no thread, no
 * clock. RFC 7143 §4.2, §11.
 *
 * <p>Contract:
 * <ul>
 * <li>The <b>reader</b> hands each header to {@link #onHeader}, puts the data segment where that
 * says, then calls {@link #onPayload}. When its stream ends, whatever the reason, it calls
 * {@link #readerStopped}.
 * <li>The <b>writer</b> calls {@link #poll} until it says no, sends what it was given, and calls
 * {@link #sent} for each. When it has nothing to do it waits until {@code wake} was run or
 * {@link #nanosToWait} are over. When it stops, it gives back by {@link #sent} what it holds.
 * <li>Any <b>caller</b> hands requests to {@link #submit}.
 * <li>After any call, {@link #pollCompleted} gives the requests that are over; each that was
 * accepted comes back exactly once.
 * </ul>
 *
 * <p>It mirrors the machine of the Rust crate, but for what would cost an allocation per command
 * there: a {@link Request} is the slot of its own task, and a PDU is encoded where the writer
 * wants it.
 *
 * <p>Threads: any, behind the one lock of this connection, which is held for short; within it the
 * lock of the session is taken, never that of another connection. {@code wake} may be run while it
 * is held.
 */
public final class InitiatorConnection {
    /** From {@link #nanosToWait}: nothing is due. */
    public static final long FOREVER = Timers.NEVER;

    private static final ByteBuffer EMPTY = ByteBuffer.allocate(0).asReadOnlyBuffer();

    private final Object lock = new Object();
    private final Core core;
    private final Asking asking;
    private final Writing writing;
    private final Reading reading;
    private final Notices notices;
    private final Upkeep upkeep;
    /** The header whose control data segment is being received. */
    private final ByteBuffer control = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
    private Receive.Place incoming = Receive.Place.NOTHING;
    private int incomingOpcode;

    /**
     * A connection whose login is through; it joins its session.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param session to which it was opened
     * @param cid its connection ID
     * @param established what its login brought
     * @param limits how much and how long
     * @param wake run when the writer may have something to do, from any thread, perhaps with the
     *        lock of this connection held: it must neither block nor call in here
     */
    public InitiatorConnection(long now, InitiatorSession session, int cid,
            Established established, ConnectionLimits limits, Runnable wake) {
        core = new Core(session, cid, wake, limits,
                session.joined(cid, established.tsih(), established.session()),
                established.connection(), established.expStatSn());
        session.window(established.expCmdSn(), established.maxCmdSn());
        core.timers.heard = now;
        asking = new Asking(core);
        writing = new Writing(core);
        reading = new Reading(core);
        notices = new Notices(core, asking);
        upkeep = new Upkeep(core, asking, notices);
    }

    /**
     * Asks for something.
     *
     * @param request the caller's until now
     * @return whether it was accepted; else {@link Request#failure} says why not, and it does not
     *         come back
     * @throws IllegalStateException when it is in hand already
     */
    public boolean submit(Request request) {
        synchronized (lock) {
            return asking.submit(request);
        }
    }

    /**
     * The next request that is over, the caller's again.
     *
     * @return the request, or {@code null} for none
     */
    public Request pollCompleted() {
        synchronized (lock) {
            return core.completed.poll();
        }
    }

    /**
     * What the target told unasked, and at last that the connection is closed.
     *
     * @return the oldest event, or {@code null} for none
     */
    public ConnectionEvent pollEvent() {
        synchronized (lock) {
            return core.events.pollFirst();
        }
    }

    /**
     * Encodes the next PDU that is due, and does what is due by time. Data-Out is made only when
     * asked for here.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param head where its header segments are put, at the position; at least
     *        {@link Outgoing#HEADER_BYTES_MAX} bytes must be left
     * @param out its data segment; to be given to {@link #sent} afterwards
     * @return whether there was one
     */
    public boolean poll(long now, ByteBuffer head, Outgoing out) {
        out.clear();
        synchronized (lock) {
            upkeep.takeMessages();
            upkeep.onDeadline(now);
            asking.logOutWhenDrained();
            return core.isOpen() && writing.next(now, head, out);
        }
    }

    /**
     * The data segment of a PDU is sent, or will never be: the writer no longer looks at it.
     *
     * @param out from {@link #poll}
     */
    public void sent(Outgoing out) {
        Request request = out.takeHolder();
        if (request != null) {
            synchronized (lock) {
                core.release(request);
            }
        }
    }

    /**
     * The data of a command for the target lies elsewhere from now on, whether the command is in
     * hand or not: what {@link #poll} gives from here on is taken from there. The writer must not
     * be inside of that meanwhile, and sees itself to what it still holds.
     *
     * @param command whose data it is
     * @param buffer where the same bytes are
     * @param at where they begin in it
     */
    public void moveDataOut(Command command, ByteBuffer buffer, int at) {
        synchronized (lock) {
            command.moveDataOut(buffer, at);
        }
    }

    /**
     * How long the writer may wait without being woken.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @return nanoseconds, or {@link #FOREVER}
     */
    public long nanosToWait(long now) {
        synchronized (lock) {
            return upkeep.nanosToWait(now);
        }
    }

    /**
     * How long nothing has arrived; for a driver that cannot call {@link #poll}, because its socket
     * takes no more.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @return nanoseconds
     */
    public long nanosSilent(long now) {
        synchronized (lock) {
            return now - core.timers.heard;
        }
    }

    /**
     * Whether nothing is in hand: no request, and no data to send.
     *
     * @return whether it is so
     */
    public boolean isIdle() {
        synchronized (lock) {
            return core.slots.used() == 0 && core.bursts.isEmpty();
        }
    }

    /**
     * Whether it is over: nothing more is sent or read.
     *
     * @return whether it is so
     */
    public boolean isClosed() {
        synchronized (lock) {
            return !core.isOpen();
        }
    }

    /**
     * Takes a PDU's header; its digest was right.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param header its Basic Header Segment, from the position on; nothing of it is kept
     * @param receive where its data segment goes
     */
    public void onHeader(long now, ByteBuffer header, Receive receive) {
        synchronized (lock) {
            receive.set(Receive.Place.NOTHING);
            if (!core.isOpen()) {
                receive.set(Receive.Place.CLOSED);
                return;
            }
            core.timers.heard = now;
            try {
                judge(now, header, header.position(), receive);
            } catch (Violated violated) {
                core.violated(violated);
                receive.set(Receive.Place.CLOSED);
            }
            incoming = receive.place();
        }
    }

    private void judge(long now, ByteBuffer header, int at, Receive receive) throws Violated {
        int opcode = BasicHeader.opcode(header, at);
        int bytes = BasicHeader.dataSegmentLength(header, at);
        int bytesMax = core.parameters.receiveDataSegmentBytesMax();
        incomingOpcode = opcode;
        if (bytes > bytesMax) {
            throw new Violated(new Violation.TooLong(opcode, bytes, bytesMax));
        }
        switch (opcode) {
            case Opcode.DATA_IN -> {
                reading.onDataIn(header, at, receive);
                return;
            }
            case Opcode.READY_TO_TRANSFER -> {
                reading.onReadyToTransfer(header, at);
                return;
            }
            case Opcode.NOP_IN -> notices.onNopInHeader(NopIn.decode(header.duplicate()));
            default -> judgeAnswer(opcode, header, at);
        }
        control.clear().put(0, header, at, BasicHeader.HEADER_BYTES);
        if (bytes == 0) {
            onControl(now, EMPTY);
        } else {
            receive.set(Receive.Place.CONTROL);
        }
    }

    /** The numbers of all that consumes a StatSN. */
    private void judgeAnswer(int opcode, ByteBuffer header, int at) throws Violated {
        switch (opcode) {
            case Opcode.SCSI_RESPONSE -> reading.onResponseHeader(header, at);
            case Opcode.TASK_MANAGEMENT_RESPONSE, Opcode.TEXT_RESPONSE, Opcode.LOGOUT_RESPONSE,
                    Opcode.ASYNC_MESSAGE, Opcode.REJECT -> {
                // Judged when it is complete.
            }
            default -> throw new Violated(new Violation.Misplaced(opcode));
        }
        core.onStatSn(BasicHeader.statSn(header, at));
        core.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
    }

    /**
     * The data segment of the last header is complete and lies where {@link #onHeader} said.
     *
     * @param now nanoseconds on the clock of {@link System#nanoTime}
     * @param data what is left in it is the segment, for {@link Receive.Place#CONTROL}; not looked
     *        at for other places
     * @param digestOk whether the data digest matched, if there is one
     */
    public void onPayload(long now, ByteBuffer data, boolean digestOk) {
        synchronized (lock) {
            Receive.Place place = incoming;
            Command command = core.receiving;
            boolean isOver = core.receivingIsOver;
            incoming = Receive.Place.NOTHING;
            core.receiving = null;
            if (core.isOpen()) {
                core.timers.heard = now;
                try {
                    if (!digestOk && place != Receive.Place.NOTHING) {
                        throw new Violated(new Violation.DataDigest(incomingOpcode));
                    }
                    onPlaced(now, place, command, isOver, data);
                } catch (Violated violated) {
                    core.violated(violated);
                }
            }
            if (command != null) {
                core.release(command);
            }
        }
    }

    private void onPlaced(long now, Receive.Place place, Command command, boolean isOver,
            ByteBuffer data) throws Violated {
        if (place == Receive.Place.CONTROL) {
            onControl(now, data);
        } else if (place == Receive.Place.COMMAND && isOver) {
            core.endTask(command);
        } else if (place == Receive.Place.COMMAND) {
            reading.onDataInDone(command);
        }
    }

    /** A whole PDU other than Data-In and R2T; its numbers were judged with its header. */
    private void onControl(long now, ByteBuffer data) throws Violated {
        control.clear();
        switch (BasicHeader.opcode(control, 0)) {
            case Opcode.SCSI_RESPONSE -> reading.onResponse(control, 0, data);
            case Opcode.TASK_MANAGEMENT_RESPONSE ->
                notices.onManagement(TaskManagementResponse.decode(control));
            case Opcode.TEXT_RESPONSE -> notices.onText(TextResponse.decode(control), data);
            case Opcode.LOGOUT_RESPONSE -> notices.onLogout(LogoutResponse.decode(control));
            case Opcode.ASYNC_MESSAGE -> notices.onAsync(now, AsyncMessage.decode(control), data);
            case Opcode.REJECT -> notices.onReject(Reject.decode(control), data);
            default -> notices.onPong(NopIn.decode(control), data);
        }
    }

    /** The next StatSN, so that tests can go on from any state. */
    int expStatSnForTests() {
        synchronized (lock) {
            return core.expStatSn;
        }
    }

    /** A header arrived whose digest did not match; framing is lost. RFC 7143 §7.8. */
    public void onHeaderDigestError() {
        synchronized (lock) {
            core.violated(new Violated(new Violation.HeaderDigest()));
        }
    }

    /**
     * A data segment is longer than we declared, as
     * {@link org.lunarsan.iscsi.framing.Deframer.Event#TOO_LONG} says.
     *
     * @param header its Basic Header Segment, from the position on
     */
    public void onTooLong(ByteBuffer header) {
        int at = header.position();
        synchronized (lock) {
            core.violated(new Violated(new Violation.TooLong(BasicHeader.opcode(header, at),
                    BasicHeader.dataSegmentLength(header, at),
                    core.parameters.receiveDataSegmentBytesMax())));
        }
    }

    /** The target closed its side, or the socket failed: the reader stops, and fills no buffer. */
    public void readerStopped() {
        synchronized (lock) {
            core.shut(new CloseReason.PeerClosed(), Ending.LOST, Failure.LOST);
            Command command = core.receiving;
            core.receiving = null;
            if (command != null) {
                core.release(command);
            }
        }
    }

    /**
     * The socket failed under the writer, or the driver gives up. What the reader or the writer
     * still holds comes back when they let go.
     */
    public void onLost() {
        synchronized (lock) {
            core.shut(new CloseReason.PeerClosed(), Ending.LOST, Failure.LOST);
        }
    }
}

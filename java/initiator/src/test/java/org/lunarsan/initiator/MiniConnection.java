package org.lunarsan.initiator;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32C;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.DataOut;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.LogoutRequest;
import org.lunarsan.iscsi.pdu.LogoutResponse;
import org.lunarsan.iscsi.pdu.NopIn;
import org.lunarsan.iscsi.pdu.NopOut;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ReadyToTransfer;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.pdu.TaskManagementRequest;
import org.lunarsan.iscsi.pdu.TaskManagementResponse;
import org.lunarsan.iscsi.pdu.TextRequest;
import org.lunarsan.iscsi.pdu.TextResponse;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.wire.SerialNumber;

/**
 * One connection of a {@link MiniTarget}. Reads PDUs and answers them as a correct target does,
 * unless the target's script handles them.
 *
 * <p>Threads: its own; sending is behind its lock.
 */
final class MiniConnection implements Runnable {
    private static final int WINDOW = 64;

    final MiniTarget target;
    final Map<Integer, PendingWrite> pendingWrites = new HashMap<>();
    private final Socket socket;
    private final DataInputStream in;
    private final OutputStream out;
    private final MiniUnit unit;
    volatile long isid = -1;
    volatile int statSn = 1;
    volatile int expCmdSn = 1;
    volatile boolean sentFirstAttention;
    volatile Digests digests = Digests.NONE;
    volatile SessionParameters session = SessionParameters.DEFAULT;
    volatile ConnectionParameters connection = ConnectionParameters.DEFAULT;
    /** Flips a bit of the next digest of headers or data. */
    volatile boolean spoilHeader;
    volatile boolean spoilData;
    private boolean loggedIn;
    private volatile boolean isCut;
    private MiniLogin login;

    /** A write whose data is incomplete. */
    static final class PendingWrite {
        final ScsiCommand command;
        final byte[] data;
        int received;
        int sequence;
        int asked;

        PendingWrite(ScsiCommand command) {
            this.command = command;
            data = new byte[command.expectedDataTransferLength()];
        }
    }

    MiniConnection(MiniTarget target, Socket socket) throws IOException {
        this.target = target;
        this.socket = socket;
        socket.setTcpNoDelay(true);
        in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 65536));
        out = socket.getOutputStream();
        unit = new MiniUnit(this);
    }

    @Override
    public void run() {
        try {
            while (true) {
                receive();
            }
        } catch (IOException exception) {
            cut();
        } finally {
            target.wires.remove(this);
        }
    }

    void cut() {
        isCut = true;
        try {
            socket.close();
        } catch (IOException ignored) {
            // The connection is cut in any case.
        }
    }

    private void receive() throws IOException {
        byte[] header = new byte[BasicHeader.HEADER_BYTES];
        in.readFully(header);
        ByteBuffer bytes = ByteBuffer.wrap(header);
        in.skipNBytes(4L * BasicHeader.totalAhsWords(bytes, 0));
        skipDigest(digests.header());
        int length = BasicHeader.dataSegmentLength(bytes, 0);
        byte[] data = new byte[length];
        in.readFully(data);
        in.skipNBytes(Digests.paddingBytes(length));
        skipDigest(digests.data() && length > 0);
        Pdu pdu = Pdu.decode(bytes);
        if (isCut) {
            // A pending read may still return data that has just arrived.
            throw new EOFException("cut");
        }
        if (!target.script.handle(this, pdu, data)) {
            handle(pdu, data);
        }
    }

    private void skipDigest(boolean there) throws IOException {
        in.skipNBytes(there ? Digests.DIGEST_BYTES : 0);
    }

    /** Handles a PDU as a correct target does. */
    void handle(Pdu pdu, byte[] data) throws IOException {
        switch (pdu) {
            case LoginRequest request -> logIn(request, data);
            case ScsiCommand command -> command(command, data);
            case DataOut dataOut -> dataOut(dataOut, data);
            case NopOut nop -> pong(nop, data);
            case TextRequest text -> text(text, data);
            case TaskManagementRequest request -> manage(request);
            case LogoutRequest logout -> logOut(logout);
            default -> throw new EOFException("not for a target: " + pdu);
        }
    }

    private void logIn(LoginRequest request, byte[] data) throws IOException {
        if (login == null) {
            login = new MiniLogin(this, request);
            target.logins.incrementAndGet();
        }
        loggedIn = login.answer(request, data);
    }

    /** Ends the session that this login replaces, before the login response is sent. */
    void established(LoginRequest request) {
        isid = request.isid();
        if (request.tsih() == 0) {
            target.sessions.incrementAndGet();
            target.replace(isid, this);
        }
        sentFirstAttention = request.tsih() != 0 || target.firstAttention == 0;
    }

    private void command(ScsiCommand command, byte[] data) throws IOException {
        if (!command.isImmediate()) {
            count(command.cmdSn());
        }
        if ((command.flags() & ScsiCommand.WRITE) == 0) {
            unit.execute(command, new byte[0]);
            return;
        }
        PendingWrite write = new PendingWrite(command);
        System.arraycopy(data, 0, write.data, 0, data.length);
        write.received = data.length;
        write.asked = data.length;
        pendingWrites.put(command.initiatorTaskTag(), write);
        if ((command.flags() & ScsiCommand.FINAL) == 0) {
            write.asked = Math.min(write.data.length, session.firstBurstBytes());
        }
        continueWrite(write);
    }

    /** Executes a write whose data is complete, or solicits more. */
    void continueWrite(PendingWrite write) throws IOException {
        if (write.received == write.data.length) {
            pendingWrites.remove(write.command.initiatorTaskTag());
            unit.execute(write.command, write.data);
        } else if (write.received == write.asked) {
            int bytes = Math.min(session.maxBurstBytes(), write.data.length - write.asked);
            readyToTransfer(write.command, write.sequence++, write.asked, bytes);
            write.asked += bytes;
        }
    }

    void readyToTransfer(ScsiCommand command, int sequence, int offset, int bytes)
            throws IOException {
        send(new ReadyToTransfer(Opcode.READY_TO_TRANSFER, 0x80, 0, 0, command.lun(),
                command.initiatorTaskTag(), 0x1000 + sequence, statSn, expCmdSn, maxCmdSn(),
                sequence, offset, bytes), new byte[0]);
    }

    private void dataOut(DataOut dataOut, byte[] data) throws IOException {
        PendingWrite write = pendingWrites.get(dataOut.initiatorTaskTag());
        if (write == null) {
            return;
        }
        System.arraycopy(data, 0, write.data, dataOut.bufferOffsetBytes(), data.length);
        write.received += data.length;
        if ((dataOut.flags() & DataOut.FINAL) != 0) {
            continueWrite(write);
        }
    }

    private void pong(NopOut nop, byte[] data) throws IOException {
        if (!nop.isImmediate()) {
            count(nop.cmdSn());
        }
        if (nop.initiatorTaskTag() != BasicHeader.TAG_RESERVED) {
            send(new NopIn(Opcode.NOP_IN, 0x80, 0, data.length, 0, nop.initiatorTaskTag(),
                    BasicHeader.TAG_RESERVED, statSn++, expCmdSn, maxCmdSn()), data);
        }
    }

    private void text(TextRequest text, byte[] data) throws IOException {
        count(text.cmdSn());
        String answer = data.length == 0 ? "" : "TargetName=" + MiniTarget.NAME
                + "\0TargetAddress=" + target.portal() + ",1\0";
        byte[] bytes = answer.getBytes(StandardCharsets.UTF_8);
        send(new TextResponse(Opcode.TEXT_RESPONSE, 0x80, 0, bytes.length, 0,
                text.initiatorTaskTag(), BasicHeader.TAG_RESERVED, statSn++, expCmdSn, maxCmdSn()),
                bytes);
    }

    private void manage(TaskManagementRequest request) throws IOException {
        pendingWrites.remove(request.referencedTaskTag());
        send(new TaskManagementResponse(Opcode.TASK_MANAGEMENT_RESPONSE, 0x80, 0, 0, 0, 0,
                request.initiatorTaskTag(), statSn++, expCmdSn, maxCmdSn()), new byte[0]);
    }

    private void logOut(LogoutRequest logout) throws IOException {
        send(new LogoutResponse(Opcode.LOGOUT_RESPONSE, 0x80, 0, 0, 0, logout.initiatorTaskTag(),
                statSn++, expCmdSn, maxCmdSn(), 2, 0), new byte[0]);
        throw new EOFException("logged out");
    }

    /** Sends Data-In of one command in pieces, then its response. */
    void answerRead(ScsiCommand command, byte[] data, int status, byte[] sense)
            throws IOException {
        int wanted = command.expectedDataTransferLength();
        int bytes = Math.min(wanted, data.length);
        int step = Math.min(connection.sendDataSegmentBytesMax(), session.maxBurstBytes());
        int sequence = 0;
        for (int at = 0; at < bytes; at += step) {
            int piece = Math.min(step, bytes - at);
            byte[] part = Arrays.copyOfRange(data, at, at + piece);
            int flags = at + piece == bytes ? DataIn.FINAL : 0;
            send(new DataIn(Opcode.DATA_IN, flags, 0, 0, piece, command.lun(),
                    command.initiatorTaskTag(), BasicHeader.TAG_RESERVED, 0, expCmdSn, maxCmdSn(),
                    sequence++, at, 0), part);
        }
        int residual = wanted - bytes;
        respond(command, status, sense, sequence, residual);
    }

    void respond(ScsiCommand command, int status, byte[] sense, int expDataSn, int underflow)
            throws IOException {
        ByteBuffer data = ByteBuffer.allocate(sense.length == 0 ? 0 : 2 + sense.length);
        if (sense.length > 0) {
            data.putShort((short) sense.length).put(sense);
        }
        int flags = ScsiResponse.FINAL | (underflow > 0 ? ScsiResponse.UNDERFLOW : 0);
        send(new ScsiResponse(Opcode.SCSI_RESPONSE, flags, 0, status, 0, data.capacity(), 0,
                command.initiatorTaskTag(), 0, statSn++, expCmdSn, maxCmdSn(), expDataSn, 0,
                underflow), data.array());
    }

    /**
     * Advances the CmdSN of all connections of the session; checks the order if the target requires
     * it.
     */
    private void count(int cmdSn) throws IOException {
        synchronized (target.wires) {
            if (target.wantsOrder && cmdSn != expCmdSn) {
                throw new EOFException("CmdSN " + cmdSn + " in place of " + expCmdSn);
            }
            for (MiniConnection wire : target.wires) {
                if (wire.isid == isid && !SerialNumber.before(cmdSn, wire.expCmdSn)) {
                    wire.expCmdSn = cmdSn + 1;
                }
            }
        }
    }

    int maxCmdSn() {
        return expCmdSn + WINDOW - 1;
    }

    /** Sends a PDU, if the censor of the target allows it. */
    void send(Pdu pdu, byte[] data) throws IOException {
        if (target.censor.allows(this, pdu)) {
            write(pdu, data);
        }
    }

    private synchronized void write(Pdu pdu, byte[] data) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(BasicHeader.HEADER_BYTES + 8 + data.length + 8);
        pdu.encode(bytes);
        if (digests.header() && loggedIn) {
            putDigest(bytes, 0, bytes.position(), spoilHeader);
            spoilHeader = false;
        }
        int at = bytes.position();
        bytes.put(data).put(new byte[Digests.paddingBytes(data.length)]);
        if (digests.data() && data.length > 0 && loggedIn) {
            putDigest(bytes, at, bytes.position() - at, spoilData);
            spoilData = false;
        }
        out.write(bytes.array(), 0, bytes.position());
        out.flush();
    }

    /** Sends bytes as they are. */
    synchronized void raw(byte[] bytes) throws IOException {
        out.write(bytes);
        out.flush();
    }

    private static void putDigest(ByteBuffer bytes, int at, int length, boolean spoil) {
        CRC32C crc = new CRC32C();
        crc.update(bytes.array(), at, length);
        bytes.putInt(Integer.reverseBytes((int) crc.getValue()) ^ (spoil ? 1 : 0));
    }
}

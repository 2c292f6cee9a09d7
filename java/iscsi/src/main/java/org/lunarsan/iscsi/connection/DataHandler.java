package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.DataInView;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.ReadyToTransferView;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.pdu.ScsiResponseView;
import org.lunarsan.iscsi.pdu.ServiceResponse;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Processes data and status of commands: Data-In, Ready To Transfer, SCSI Response. RFC 7143 §11.4,
 * §11.7, §11.8. It allocates nothing on success.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class DataHandler {
    /** SAM-5 §5.3. */
    private static final int STATUS_GOOD = 0;

    private final ConnectionState state;
    /** Set if the current Data-In carries a status. */
    private boolean hasStatus;
    private int status;
    private int flags;
    private int residualBytes;

    DataHandler(ConnectionState state) {
        this.state = state;
    }

    /** Checks the header of a Data-In and sets the destination of its data. */
    void onDataIn(ByteBuffer header, int at, Receive receive) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        int bytes = BasicHeader.dataSegmentLength(header, at);
        flags = DataInView.flags(header, at);
        hasStatus = (flags & DataIn.STATUS) != 0;
        if (hasStatus && (flags & DataIn.FINAL) == 0) {
            throw Violated.malformed(Opcode.DATA_IN, "S without F");
        }
        if (hasStatus) {
            state.onStatSn(BasicHeader.statSn(header, at));
        }
        state.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
        if (!(state.sent(tag) instanceof Command command)) {
            onLateDataIn(tag, bytes, receive);
            return;
        }
        if (hasStatus && command.isBidirectional()) {
            throw Violated.malformed(Opcode.DATA_IN, "S for a bidirectional command");
        }
        count(command, Opcode.DATA_IN, DataInView.dataSn(header, at));
        int offset = DataInView.bufferOffsetBytes(header, at);
        boolean inOrder = state.agreed.dataPduInOrder() && state.agreed.dataSequenceInOrder();
        String misfit =
                command.received.add(offset, bytes, command.dataInBytesMax(), inOrder);
        if (misfit != null) {
            throw Violated.malformed(Opcode.DATA_IN, misfit);
        }
        status = DataInView.status(header, at);
        residualBytes = DataInView.residualBytes(header, at);
        if (bytes == 0) {
            onDataInDone(command);
            return;
        }
        state.receiving = command;
        state.receivingIsOver = false;
        command.holders++;
        receive.set(command, offset);
    }

    /**
     * Ignores data for a task that a management function has ended; any other unknown tag is a
     * violation.
     */
    private void onLateDataIn(int tag, int bytes, Receive receive) throws Violated {
        if (!state.endedTags.contains(tag)) {
            throw new Violated(new Violation.UnknownTag(Opcode.DATA_IN, tag));
        }
        if (hasStatus) {
            state.endedTags.remove(tag);
        }
        if (bytes > 0) {
            receive.set(Receive.Destination.DISCARD);
        }
    }

    /** Checks the common sequence number of Data-In and R2T. RFC 7143 §4.2.2.4. */
    private static void count(Command command, int opcode, int number) throws Violated {
        if (number != command.inputSn) {
            throw new Violated(new Violation.DataSn(opcode, number, command.inputSn));
        }
        command.inputSn++;
    }

    /**
     * Processes a complete Data-In; one with a status ends the command. RFC 7143 §11.7.3: there is
     * no sense, and the residual has the same offset as in a response.
     */
    void onDataInDone(Command command) throws Violated {
        if (!hasStatus) {
            return;
        }
        command.residual = residual(Opcode.DATA_IN, (flags & DataIn.OVERFLOW) != 0,
                (flags & DataIn.UNDERFLOW) != 0);
        command.residualBytes = residualBytes;
        command.response = ServiceResponse.COMMAND_COMPLETED;
        command.status = status;
        setDataLength(command, command.residual, residualBytes);
        state.finish(command, null);
    }

    /**
     * Accepts an R2T; its data is sent after that of earlier ones, in the order that RFC 7143 §11.8
     * requires.
     */
    void onReadyToTransfer(ByteBuffer header, int at) throws Violated {
        state.onNextStatSn(BasicHeader.statSn(header, at));
        state.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
        int tag = BasicHeader.initiatorTaskTag(header, at);
        int bytes = ReadyToTransferView.desiredLengthBytes(header, at);
        int transferTag = BasicHeader.targetTransferTag(header, at);
        requireR2t(BasicHeader.dataSegmentLength(header, at) == 0, "it has a data segment");
        requireR2t(bytes > 0 && bytes <= state.agreed.maxBurstBytes(),
                "the desired length is 0 or more than MaxBurstLength");
        requireR2t(transferTag != BasicHeader.TAG_RESERVED,
                "the Target Transfer Tag is the reserved one");
        if (!(state.sent(tag) instanceof Command command)) {
            if (!state.endedTags.contains(tag)) {
                throw new Violated(new Violation.UnknownTag(Opcode.READY_TO_TRANSFER, tag));
            }
            return;
        }
        int number = ReadyToTransferView.r2tSn(header, at);
        if (number != command.inputSn) {
            throw new Violated(new Violation.DataSn(Opcode.READY_TO_TRANSFER, number,
                    command.inputSn));
        }
        requireR2t(command.r2tsOpen < state.agreed.maxOutstandingR2t(),
                "more R2Ts are open than MaxOutstandingR2T");
        int offset = ReadyToTransferView.bufferOffsetBytes(header, at);
        String misfit = command.asked.add(offset, bytes, command.dataOutBytes(),
                state.agreed.dataSequenceInOrder());
        requireR2t(misfit == null, misfit);
        command.inputSn++;
        command.r2tsOpen++;
        if (!state.dataIsOver) {
            state.bursts.add(command, transferTag, BasicHeader.lun(header, at), offset,
                    offset + bytes);
            state.wake.run();
        }
    }

    private static void requireR2t(boolean kept, String what) throws Violated {
        if (!kept) {
            throw Violated.malformed(Opcode.READY_TO_TRANSFER, what);
        }
    }

    /** Checks the header of a SCSI Response, as far as possible without its data segment. */
    void onResponseHeader(ByteBuffer header, int at) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        if (!(state.sent(tag) instanceof Command) && !state.endedTags.contains(tag)) {
            throw new Violated(new Violation.UnknownTag(Opcode.SCSI_RESPONSE, tag));
        }
    }

    /** Processes the whole SCSI Response. RFC 7143 §11.4. */
    void onResponse(ByteBuffer header, int at, ByteBuffer data) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        if (!(state.sent(tag) instanceof Command command)) {
            state.endedTags.remove(tag);
            return;
        }
        command.response = ScsiResponseView.response(header, at);
        command.status = ScsiResponseView.status(header, at);
        boolean completed = command.response == ServiceResponse.COMMAND_COMPLETED;
        // Residuals are invalid otherwise. RFC 7143 §11.4.5.1.
        if (completed) {
            takeResiduals(command, header, at);
            int got = ScsiResponseView.expDataSn(header, at);
            // Some targets count R2Ts, so only more than we saw is a sure sign of a loss.
            if (Integer.compareUnsigned(got, command.inputSn) > 0) {
                throw new Violated(new Violation.DataSn(Opcode.SCSI_RESPONSE, got,
                        command.inputSn));
            }
            boolean both = command.isBidirectional();
            setDataLength(command, both ? command.readResidual : command.residual,
                    both ? command.readResidualBytes : command.residualBytes);
        } else {
            command.dataInBytes = command.received.contiguous();
        }
        if (data.hasRemaining()) {
            command.sense = sense(data, Opcode.SCSI_RESPONSE);
        }
        if (state.agreed.protocolLevel() >= 2) {
            command.statusQualifier = ScsiResponseView.statusQualifier(header, at);
        }
        state.finish(command, null);
    }

    private static void takeResiduals(Command command, ByteBuffer header, int at)
            throws Violated {
        int bits = ScsiResponseView.flags(header, at);
        command.residual = residual(Opcode.SCSI_RESPONSE, (bits & ScsiResponse.OVERFLOW) != 0,
                (bits & ScsiResponse.UNDERFLOW) != 0);
        command.residualBytes = ScsiResponseView.residualBytes(header, at);
        command.readResidual = residual(Opcode.SCSI_RESPONSE,
                (bits & ScsiResponse.BIDI_READ_OVERFLOW) != 0,
                (bits & ScsiResponse.BIDI_READ_UNDERFLOW) != 0);
        command.readResidualBytes = ScsiResponseView.bidiReadResidualBytes(header, at);
    }

    /**
     * Sets the length of data from the start of the data-in range. A command that ended well
     * must have received all data except its residual: otherwise garbage would be taken for data.
     */
    private static void setDataLength(Command command, Residual residual, int residualBytes)
            throws Violated {
        int max = command.dataInBytesMax();
        long except = residual == Residual.UNDERFLOW ? Integer.toUnsignedLong(residualBytes) : 0;
        int expected = (int) Math.max(max - except, 0);
        int got = command.received.contiguous();
        boolean complete = got >= expected && command.received.isWhole();
        if (command.status == STATUS_GOOD && !complete) {
            throw new Violated(new Violation.MissingData(got, expected));
        }
        command.dataInBytes = Math.min(got, expected);
    }

    /**
     * Returns the kind of residual. RFC 7143 §11.4.1: O and U exclude each other; without them the
     * count is ignored.
     */
    private static Residual residual(int opcode, boolean overflow, boolean underflow)
            throws Violated {
        if (overflow && underflow) {
            throw Violated.malformed(opcode, "both O and U");
        }
        return overflow ? Residual.OVERFLOW : underflow ? Residual.UNDERFLOW : Residual.NONE;
    }

    /** Returns the sense data of a data segment that starts with SenseLength. RFC 7143 §11.4.7. */
    static byte[] sense(ByteBuffer data, int opcode) throws Violated {
        if (data.remaining() == 0) {
            return new byte[0];
        }
        if (data.remaining() < Short.BYTES) {
            throw Violated.malformed(opcode, "a truncated SenseLength");
        }
        int bytes = Fields.u16(data, data.position());
        if (bytes > data.remaining() - Short.BYTES) {
            throw Violated.malformed(opcode, "SenseLength reaches beyond the data segment");
        }
        byte[] sense = new byte[bytes];
        data.get(data.position() + Short.BYTES, sense);
        return sense;
    }
}

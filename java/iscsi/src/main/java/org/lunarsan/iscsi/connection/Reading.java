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
 * Data and status of commands: Data-In, Ready To Transfer, SCSI Response. RFC 7143 §11.4, §11.7,
 * §11.8. It allocates nothing where all is well.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Reading {
    /** SAM-5 §5.3. */
    private static final int STATUS_GOOD = 0;

    private final Core core;
    /** The status that the Data-In in hand bears. */
    private boolean hasStatus;
    private int status;
    private int flags;
    private int residualBytes;

    Reading(Core core) {
        this.core = core;
    }

    /** Judges the header of a Data-In and says where its data goes. */
    void onDataIn(ByteBuffer header, int at, Receive receive) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        int bytes = BasicHeader.dataSegmentLength(header, at);
        flags = DataInView.flags(header, at);
        hasStatus = (flags & DataIn.STATUS) != 0;
        if (hasStatus && (flags & DataIn.FINAL) == 0) {
            throw Violated.malformed(Opcode.DATA_IN, "S without F");
        }
        if (hasStatus) {
            core.onStatSn(BasicHeader.statSn(header, at));
        }
        core.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
        if (!(core.sent(tag) instanceof Command command)) {
            onLateDataIn(tag, bytes, receive);
            return;
        }
        if (hasStatus && command.isBidirectional()) {
            throw Violated.malformed(Opcode.DATA_IN, "S for a bidirectional command");
        }
        count(command, Opcode.DATA_IN, DataInView.dataSn(header, at));
        int offset = DataInView.bufferOffsetBytes(header, at);
        boolean inOrder = core.agreed.dataPduInOrder() && core.agreed.dataSequenceInOrder();
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
        core.receiving = command;
        core.receivingIsOver = false;
        command.holders++;
        receive.set(command, offset);
    }

    /** Data for a task that a management function has ended is no news; any other is hostile. */
    private void onLateDataIn(int tag, int bytes, Receive receive) throws Violated {
        if (!core.endedTags.contains(tag)) {
            throw new Violated(new Violation.UnknownTag(Opcode.DATA_IN, tag));
        }
        if (hasStatus) {
            core.endedTags.remove(tag);
        }
        if (bytes > 0) {
            receive.set(Receive.Place.DISCARD);
        }
    }

    /** One sequence of numbers for Data-In and R2T. RFC 7143 §4.2.2.4. */
    private static void count(Command command, int opcode, int number) throws Violated {
        if (number != command.inputSn) {
            throw new Violated(new Violation.DataSn(opcode, number, command.inputSn));
        }
        command.inputSn++;
    }

    /**
     * The data of a Data-In lies in its place; with a status the command is over. RFC 7143 §11.7.3:
     * there is no sense, and the residual stands where a response has it.
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
        judgeData(command, command.residual, residualBytes);
        core.finish(command, null);
    }

    /**
     * Takes one R2T on; its data goes out when those before it are through, which keeps the order
     * that RFC 7143 §11.8 asks for.
     */
    void onReadyToTransfer(ByteBuffer header, int at) throws Violated {
        core.onNextStatSn(BasicHeader.statSn(header, at));
        core.onWindow(BasicHeader.expCmdSn(header, at), BasicHeader.maxCmdSn(header, at));
        int tag = BasicHeader.initiatorTaskTag(header, at);
        int bytes = ReadyToTransferView.desiredLengthBytes(header, at);
        int transferTag = BasicHeader.targetTransferTag(header, at);
        requireR2t(BasicHeader.dataSegmentLength(header, at) == 0, "it has a data segment");
        requireR2t(bytes > 0 && bytes <= core.agreed.maxBurstBytes(),
                "the desired length is 0 or more than MaxBurstLength");
        requireR2t(transferTag != BasicHeader.TAG_RESERVED,
                "the Target Transfer Tag is the reserved one");
        if (!(core.sent(tag) instanceof Command command)) {
            if (!core.endedTags.contains(tag)) {
                throw new Violated(new Violation.UnknownTag(Opcode.READY_TO_TRANSFER, tag));
            }
            return;
        }
        int number = ReadyToTransferView.r2tSn(header, at);
        if (number != command.inputSn) {
            throw new Violated(new Violation.DataSn(Opcode.READY_TO_TRANSFER, number,
                    command.inputSn));
        }
        requireR2t(command.r2tsOpen < core.agreed.maxOutstandingR2t(),
                "more R2Ts are open than MaxOutstandingR2T");
        int offset = ReadyToTransferView.bufferOffsetBytes(header, at);
        String misfit = command.asked.add(offset, bytes, command.dataOutBytes(),
                core.agreed.dataSequenceInOrder());
        requireR2t(misfit == null, misfit);
        command.inputSn++;
        command.r2tsOpen++;
        if (!core.dataIsOver) {
            core.bursts.add(command, transferTag, BasicHeader.lun(header, at), offset,
                    offset + bytes);
            core.wake.run();
        }
    }

    private static void requireR2t(boolean kept, String what) throws Violated {
        if (!kept) {
            throw Violated.malformed(Opcode.READY_TO_TRANSFER, what);
        }
    }

    /** The header of a SCSI Response. Only what can be judged without its data segment. */
    void onResponseHeader(ByteBuffer header, int at) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        if (!(core.sent(tag) instanceof Command) && !core.endedTags.contains(tag)) {
            throw new Violated(new Violation.UnknownTag(Opcode.SCSI_RESPONSE, tag));
        }
    }

    /** The whole SCSI Response. RFC 7143 §11.4. */
    void onResponse(ByteBuffer header, int at, ByteBuffer data) throws Violated {
        int tag = BasicHeader.initiatorTaskTag(header, at);
        if (!(core.sent(tag) instanceof Command command)) {
            core.endedTags.remove(tag);
            return;
        }
        command.response = ScsiResponseView.response(header, at);
        command.status = ScsiResponseView.status(header, at);
        boolean completed = command.response == ServiceResponse.COMMAND_COMPLETED;
        // Residuals have no meaning otherwise. RFC 7143 §11.4.5.1.
        if (completed) {
            takeResiduals(command, header, at);
            int got = ScsiResponseView.expDataSn(header, at);
            // R2Ts count in some targets, so more than we saw is the only sure sign of a loss.
            if (Integer.compareUnsigned(got, command.inputSn) > 0) {
                throw new Violated(new Violation.DataSn(Opcode.SCSI_RESPONSE, got,
                        command.inputSn));
            }
            boolean both = command.isBidirectional();
            judgeData(command, both ? command.readResidual : command.residual,
                    both ? command.readResidualBytes : command.residualBytes);
        } else {
            command.dataInBytes = command.received.contiguous();
        }
        if (data.hasRemaining()) {
            command.sense = sense(data, Opcode.SCSI_RESPONSE);
        }
        if (core.agreed.protocolLevel() >= 2) {
            command.statusQualifier = ScsiResponseView.statusQualifier(header, at);
        }
        core.finish(command, null);
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
     * How much of the data-in range holds data from its start. A command that ended well must have
     * brought all that its residual does not except: else garbage would be taken for data.
     */
    private static void judgeData(Command command, Residual residual, int residualBytes)
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

    /** RFC 7143 §11.4.1: O and U exclude one another; without them the count says nothing. */
    private static Residual residual(int opcode, boolean overflow, boolean underflow)
            throws Violated {
        if (overflow && underflow) {
            throw Violated.malformed(opcode, "both O and U");
        }
        return overflow ? Residual.OVERFLOW : underflow ? Residual.UNDERFLOW : Residual.NONE;
    }

    /** The sense data of a data segment that starts with SenseLength. RFC 7143 §11.4.7. */
    static byte[] sense(ByteBuffer data, int opcode) throws Violated {
        if (data.remaining() == 0) {
            return new byte[0];
        }
        if (data.remaining() < Short.BYTES) {
            throw Violated.malformed(opcode, "half a SenseLength");
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

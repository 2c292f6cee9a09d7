package org.lunarsan.initiator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.Status;

/** The disk of a {@link MiniTarget}, for one wire. Threads: that of its wire. */
final class MiniUnit {
    private static final byte[] NOTHING = new byte[0];
    private static final int INVALID_FIELD = 0x2400;

    private final MiniConnection wire;
    private final MiniTarget target;

    MiniUnit(MiniConnection wire) {
        this.wire = wire;
        target = wire.target;
    }

    void execute(ScsiCommand command, byte[] data) throws IOException {
        byte[] cdb = command.cdb();
        int opcode = cdb[0] & 0xff;
        if (opcode != 0x12 && !wire.sentFirstAttention) {
            wire.sentFirstAttention = true;
            fail(command, MiniTarget.senseOf(Sense.UNIT_ATTENTION, target.firstAttention, -1));
            return;
        }
        byte[] sense = opcode == 0x12 ? null : target.sense.poll();
        if (sense != null) {
            fail(command, sense);
            return;
        }
        switch (opcode) {
            case 0x00, 0x91 -> wire.respond(command, Status.GOOD, NOTHING, 0, 0);
            case 0x12 -> inquiry(command, cdb);
            case 0x1a -> wire.answerRead(command, mode(), Status.GOOD, NOTHING);
            case 0x9e -> wire.answerRead(command, capacity(), Status.GOOD, NOTHING);
            case 0x88, 0x8a, 0x93 -> transfer(command, ByteBuffer.wrap(cdb), opcode, data);
            default -> illegal(command, Sense.INVALID_OPERATION_CODE);
        }
    }

    private void transfer(ScsiCommand command, ByteBuffer cdb, int opcode, byte[] data)
            throws IOException {
        long lba = cdb.getLong(2);
        int blocks = cdb.getInt(10);
        if (lba < 0 || blocks < 0 || lba + blocks > target.disk.length / target.blockBytes) {
            illegal(command, Sense.LBA_OUT_OF_RANGE);
            return;
        }
        int at = (int) lba * target.blockBytes;
        int bytes = blocks * target.blockBytes;
        synchronized (target.disk) {
            switch (opcode) {
                case 0x8a -> System.arraycopy(data, 0, target.disk, at, data.length);
                case 0x93 -> Arrays.fill(target.disk, at, at + bytes, (byte) 0);
                default -> data = Arrays.copyOfRange(target.disk, at, at + bytes);
            }
        }
        if (opcode == 0x88) {
            wire.answerRead(command, data, Status.GOOD, NOTHING);
        } else {
            wire.respond(command, Status.GOOD, NOTHING, 0, 0);
        }
    }

    private void inquiry(ScsiCommand command, byte[] cdb) throws IOException {
        if ((cdb[1] & 1) == 0) {
            byte[] data = new byte[36];
            Arrays.fill(data, 8, 36, (byte) ' ');
            System.arraycopy("LUNAR   MINI".getBytes(StandardCharsets.US_ASCII), 0, data, 8, 12);
            wire.answerRead(command, data, Status.GOOD, NOTHING);
            return;
        }
        ByteBuffer page = switch (cdb[2] & 0xff) {
            case 0x83 -> designator();
            case 0xb0 -> ByteBuffer.allocate(60).putInt(4, target.transferBlocksMax);
            case 0xb2 -> ByteBuffer.allocate(4).put(1, (byte) (target.thin ? 0xe4 : 0));
            default -> null;
        };
        if (page == null) {
            illegal(command, INVALID_FIELD);
            return;
        }
        ByteBuffer data = ByteBuffer.allocate(4 + page.capacity());
        data.put(1, cdb[2]).putShort(2, (short) page.capacity()).put(4, page.array());
        wire.answerRead(command, data.array(), Status.GOOD, NOTHING);
    }

    private ByteBuffer designator() {
        byte[] name = target.serial.getBytes(StandardCharsets.US_ASCII);
        return ByteBuffer.allocate(4 + name.length).put(0, (byte) 2).put(1, (byte) 1)
                .put(3, (byte) name.length).put(4, name);
    }

    private byte[] mode() {
        byte[] mode = new byte[24];
        mode[0] = 23;
        mode[2] = (byte) (target.writeProtected ? 0x80 : 0);
        mode[4] = 0x08;
        mode[5] = 18;
        mode[6] = (byte) (target.writeCache ? 0x04 : 0);
        return mode;
    }

    private byte[] capacity() {
        return ByteBuffer.allocate(32).putLong(target.blocks - 1).putInt(target.blockBytes)
                .putShort(14, (short) (target.thin ? 0xc000 : 0)).array();
    }

    private void illegal(ScsiCommand command, int code) throws IOException {
        fail(command, MiniTarget.senseOf(Sense.ILLEGAL_REQUEST, code, -1));
    }

    void fail(ScsiCommand command, byte[] sense) throws IOException {
        wire.respond(command, Status.CHECK_CONDITION, sense, 0,
                command.expectedDataTransferLength());
    }
}

package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.DataOut;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.scsi.Cdb;
import org.lunarsan.iscsi.scsi.Status;
import org.lunarsan.iscsi.text.SessionParameters;

/** Reads, writes, and possible answers of targets. */
class TransferTest {
    /** Goal: a read in two pieces, with the status in the second. */
    @Test
    void read() {
        Rig rig = new Rig();
        Command read = Rig.read(16_384).lun(3L << 48);
        Cdb.read16(read.cdb(), 77, 32);
        rig.submit(read);
        ScsiCommand sent = rig.next(ScsiCommand.class);
        assertEquals(ScsiCommand.FINAL | ScsiCommand.READ | 1, sent.flags());
        assertEquals(16_384, sent.expectedDataTransferLength());
        assertEquals(100, sent.cmdSn());
        assertEquals(50, sent.expStatSn());
        assertEquals(3L << 48, sent.lun());
        assertArrayEquals(read.cdb(), sent.cdb());
        int tag = sent.initiatorTaskTag();
        assertEquals(Receive.Destination.COMMAND, rig.gets(rig.dataIn(tag, 0, 0, 8192)));
        assertEquals(read, rig.receive.command());
        rig.nothingCompletes();
        rig.gets(rig.lastDataIn(tag, 1, 8192, 8192, 0, 0));
        rig.answered(read);
        assertEquals(16_384, read.dataInBytes());
        assertEquals(Status.GOOD, read.status());
        assertTrue(rig.connection.isIdle());
    }

    /** Goal: residuals determine the length of data in the buffer, in Data-In and in a response. */
    @Test
    void residuals() {
        Rig rig = new Rig();
        Command read = Rig.read(8192);
        rig.submit(read);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        rig.gets(rig.lastDataIn(tag, 0, 0, 8000, DataIn.UNDERFLOW, 192));
        rig.answered(read);
        assertEquals(8000, read.dataInBytes());
        assertEquals(Residual.UNDERFLOW, read.residual());
        assertEquals(192, read.residualBytes());
        rig.submit(read);
        tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        rig.gets(rig.dataIn(tag, 0, 0, 8192));
        rig.gets(rig.response(tag, ScsiResponse.FINAL | ScsiResponse.OVERFLOW, 0, 1, -1, 0));
        rig.answered(read);
        assertEquals(8192, read.dataInBytes());
        assertEquals(Residual.OVERFLOW, read.residual());
        assertEquals(0xffff_ffffL, read.residualBytes());
    }

    /** Goal: CHECK CONDITION carries its sense data; missing data is then no violation. */
    @Test
    void sense() {
        Rig rig = new Rig();
        Command read = Rig.read(8192);
        rig.submit(read);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        byte[] data = {0, 3, 0x70, 0, 5, 0};
        rig.gets(rig.response(tag, ScsiResponse.FINAL, Status.CHECK_CONDITION, 0, 0, data.length),
                data);
        rig.answered(read);
        assertEquals(Status.CHECK_CONDITION, read.status());
        assertArrayEquals(new byte[] {0x70, 0, 5}, read.sense());
        rig.submit(read);
        assertEquals(0, read.sense().length, "the last answer is forgotten");
    }

    /**
     * Goal: a write sends immediate data, unsolicited data, then solicited data, each in pieces.
     */
    @Test
    void write() {
        Rig rig = new Rig(Rig.parameters(false, true, 2));
        Command write = Rig.write(100_000);
        rig.submit(write);
        ScsiCommand sent = rig.next(ScsiCommand.class);
        assertEquals(ScsiCommand.WRITE | 1, sent.flags(), "unsolicited data follows");
        assertEquals(8192, sent.dataSegmentLength());
        int tag = sent.initiatorTaskTag();
        assertEquals(8192 * 4, sequence(rig, tag, Rig.TAG_NONE, 8192, 0));
        assertNull(rig.next());
        rig.gets(rig.r2t(tag, 0, 32_768, 20_000));
        rig.gets(rig.r2t(tag, 1, 52_768, 47_232));
        assertEquals(52_768, sequence(rig, tag, 0x70, 32_768, 9));
        assertEquals(100_000, sequence(rig, tag, 0x71, 52_768, 9));
        assertNull(rig.next());
        rig.gets(rig.response(tag, Status.GOOD));
        rig.answered(write);
        assertTrue(rig.connection.isIdle());
    }

    /** Checks one sequence of Data-Out; returns its end. */
    private static int sequence(Rig rig, int tag, int transferTag, int from, long lun) {
        int at = from;
        for (int number = 0;; number++) {
            DataOut data = rig.next(DataOut.class);
            assertEquals(tag, data.initiatorTaskTag());
            assertEquals(transferTag, data.targetTransferTag());
            assertEquals(number, data.dataSn());
            assertEquals(at, data.bufferOffsetBytes());
            assertEquals(lun, data.lun());
            at += data.dataSegmentLength();
            if ((data.flags() & DataOut.FINAL) != 0) {
                return at;
            }
            assertEquals(Rig.SEGMENT, data.dataSegmentLength());
        }
    }

    /**
     * Goal: InitialR2T and ImmediateData determine the unsolicited data. RFC 7143 §13.10, §13.11.
     */
    @Test
    void openings() {
        int[][] cases = {{0, 0, 0, 32_768}, {0, 1, 8192, 32_768}, {1, 0, 0, 0}, {1, 1, 8192, 8192}};
        for (int[] row : cases) {
            Rig rig = new Rig(Rig.parameters(row[0] == 1, row[1] == 1, 1));
            rig.submit(Rig.write(40_000));
            ScsiCommand sent = rig.next(ScsiCommand.class);
            assertEquals(row[2], sent.dataSegmentLength());
            assertEquals(row[3] > row[2] ? 0 : ScsiCommand.FINAL,
                    sent.flags() & ScsiCommand.FINAL);
            int at = row[2];
            while (rig.next() instanceof DataOut data) {
                assertEquals(at, data.bufferOffsetBytes());
                at += data.dataSegmentLength();
            }
            assertEquals(row[3], at);
        }
    }

    /** Goal: a long CDB and a bidirectional length are encoded in segments after the header. */
    @Test
    void additionalHeaderSegments() throws Exception {
        Rig rig = new Rig();
        byte[] cdb = new byte[200];
        cdb[199] = 9;
        Command both = Rig.write(512).longCdb(cdb);
        both.dataIn(ByteBuffer.allocate(4096), 0, 4096);
        rig.submit(both);
        ScsiCommand sent = rig.next(ScsiCommand.class);
        assertEquals(512, sent.expectedDataTransferLength());
        assertEquals(ScsiCommand.FINAL | ScsiCommand.READ | ScsiCommand.WRITE | 1, sent.flags());
        CommandSegments segments = CommandSegments.decode(rig.head);
        assertEquals(184, segments.extendedCdb().length);
        assertEquals(9, segments.extendedCdb()[183]);
        assertEquals(4096, segments.expectedReadBytes());
    }

    /** Goal: data in any order is accepted if that was negotiated, and counted once. */
    @Test
    void outOfOrder() {
        SessionParameters any = new SessionParameters(Rig.parameters(false, true, 1).sessionType(),
                2, false, true, 65_536, 32_768, 2, 20, 1, false, false, 0,
                Rig.parameters(false, true, 1).taskReporting(), 2);
        Rig rig = new Rig(any);
        Command read = Rig.read(12_288);
        rig.submit(read);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        rig.gets(rig.dataIn(tag, 0, 8192, 4096));
        rig.gets(rig.dataIn(tag, 1, 0, 4096));
        rig.gets(rig.lastDataIn(tag, 2, 4096, 4096, 0, 0));
        rig.answered(read);
        assertEquals(12_288, read.dataInBytes());
    }

    /** Goal: a command does not complete while the writer uses its data. */
    @Test
    void aPendingSendHoldsTheData() {
        Rig rig = new Rig();
        Command write = Rig.write(4096);
        rig.submit(write);
        assertInstanceOf(ScsiCommand.class, rig.nextHeld());
        int tag = write.tag;
        rig.gets(rig.response(tag, Status.CHECK_CONDITION));
        rig.nothingCompletes();
        rig.connection.sent(rig.out);
        rig.connection.sent(rig.out);
        rig.answered(write);
        rig.nothingCompletes();
    }

    /**
     * Goal: a command does not complete while the reader fills its buffer, even if the connection
     * ends.
     */
    @Test
    void aPendingReceiveHoldsTheBuffer() {
        Rig rig = new Rig();
        Command read = Rig.read(4096);
        Command other = Rig.read(4096);
        rig.submit(read);
        rig.submit(other);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        ByteBuffer header = ByteBuffer.allocate(48);
        rig.dataIn(tag, 0, 0, 4096).encode(header);
        rig.connection.onHeader(rig.now, header.flip(), rig.receive);
        assertEquals(Receive.Destination.COMMAND, rig.receive.destination());
        rig.connection.onLost();
        rig.failed(other, Failure.Kind.REFUSED);
        rig.nothingCompletes();
        rig.connection.readerStopped();
        rig.failed(read, Failure.Kind.LOST);
        rig.nothingCompletes();
        assertInstanceOf(CloseReason.PeerClosed.class, rig.closed());
        assertNull(rig.connection.pollEvent(), "it closes once");
    }
}

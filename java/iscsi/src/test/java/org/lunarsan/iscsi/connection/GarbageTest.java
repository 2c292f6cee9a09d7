package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.framing.Deframer;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.framing.Framer;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.DataInView;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.scsi.Cdb;

/** Garbage produced by a command. */
class GarbageTest {
    private static final int BLOCK = 4096;
    private static final int READS = 20_000;
    private static final long WARM_NANOS_MAX = 60_000_000_000L;

    private final Rig rig = new Rig();
    private final Command read = Rig.read(BLOCK);
    private final Framer framer = new Framer(new Digests(true, true));
    private final Deframer deframer = new Deframer();
    private final ByteBuffer wire = ByteBuffer.allocate(2 * BLOCK);
    private final ByteBuffer data = ByteBuffer.allocate(BLOCK);
    private final ByteBuffer destination = read.dataInBuffer();
    private int maxCmdSn = 131;

    /**
     * Goal: a successful read allocates nothing here: the machine, digests and framing in both
     * directions. Method: measure the allocations of this thread over many reads, after
     * compilation; on a busy machine that takes a while.
     */
    @Test
    void aReadAllocatesNothing() {
        deframer.expect(new Digests(true, true), Rig.SEGMENT);
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long thread = Thread.currentThread().threadId();
        long until = System.nanoTime() + WARM_NANOS_MAX;
        long each;
        do {
            long before = threads.getThreadAllocatedBytes(thread);
            for (int reads = 0; reads < READS; reads++) {
                readOnce();
            }
            each = (threads.getThreadAllocatedBytes(thread) - before) / READS;
        } while (each > 8 && until - System.nanoTime() > 0);
        assertTrue(each <= 8, each + " bytes for each read");
    }

    private void readOnce() {
        read.clear().dataIn(destination, 0, BLOCK);
        Cdb.read16(read.cdb(), 7, 8);
        check(rig.connection.submit(read));
        rig.head.clear();
        check(rig.connection.poll(rig.now, rig.head, rig.out));
        framer.endHeader(rig.head, 0);
        rig.connection.sent(rig.out);
        int tag = BasicHeader.initiatorTaskTag(rig.head, 0);
        wire.clear().position(BasicHeader.HEADER_BYTES);
        DataInView.encode(wire, 0, Opcode.DATA_IN, DataIn.FINAL | DataIn.STATUS, 0, 0, BLOCK, 0,
                tag, -1, rig.statSn++, read.cmdSn + 1, ++maxCmdSn, 0, 0, 0);
        framer.endHeader(wire, 0);
        wire.put(wire.position(), data, 0, BLOCK).position(wire.position() + BLOCK);
        framer.endData(data, 0, BLOCK, wire);
        wire.flip();
        check(deframer.next(wire) == Deframer.Event.HEADER);
        rig.connection.onHeader(rig.now, deframer.header(), rig.receive);
        check(rig.receive.destination() == Receive.Destination.COMMAND);
        check(deframer.next(wire) == Deframer.Event.PAYLOAD);
        check(deframer.take(wire, destination.clear()) == BLOCK);
        check(deframer.next(wire) == Deframer.Event.PAYLOAD_END);
        rig.connection.onPayload(rig.now, null, true);
        check(rig.connection.pollCompleted() == read && read.failure() == null);
    }

    /** An assertion of JUnit would allocate. */
    private static void check(boolean sound) {
        if (!sound) {
            throw new AssertionError();
        }
    }
}

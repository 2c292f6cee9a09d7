package org.lunarsan.iscsi.pdu;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.wire.Lun;
import org.lunarsan.iscsi.wire.SerialNumber;

/** Headers with random bytes. */
class PduTest {
    private static ByteBuffer encoded(Pdu pdu) {
        ByteBuffer out = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        pdu.encode(out);
        assertEquals(0, out.remaining());
        return out.flip();
    }

    /**
     * Goal: any bytes decode; encoding the result gives the same bytes, with zero in reserved ones;
     * and these decode to the same value.
     */
    @Test
    void anyBytes() {
        Random random = Seed.of(PduTest.class);
        for (int round = 0; round < 20_000; round++) {
            ByteBuffer bytes = ByteBuffer.wrap(Seed.bytes(random, BasicHeader.HEADER_BYTES));
            Pdu pdu = Pdu.decode(bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN));
            ByteBuffer again = encoded(pdu);
            for (int at = 0; at < BasicHeader.HEADER_BYTES; at++) {
                byte byteAgain = again.get(at);
                assertTrue(byteAgain == 0 || byteAgain == bytes.get(at), pdu + " at " + at);
            }
            assertEquals(pdu, Pdu.decode(again.duplicate()));
            assertEquals(pdu.hashCode(), Pdu.decode(again.duplicate()).hashCode());
            assertEquals(again, encoded(Pdu.decode(again.duplicate())));
            assertEquals(bytes.get(0) & 0x3f, pdu.opcode());
            assertEquals((bytes.get(0) & 0x40) != 0, pdu.isImmediate());
            assertEquals(BasicHeader.dataSegmentLength(bytes, 0), pdu.dataSegmentLength());
            assertEquals(BasicHeader.initiatorTaskTag(bytes, 0), pdu.initiatorTaskTag());
            assertTrue(!pdu.toString().isEmpty());
        }
    }

    /** Goal: a PDU with an undefined opcode is kept as received. */
    @Test
    void unknownOpcode() {
        ByteBuffer bytes = ByteBuffer.allocate(48).put(0, (byte) 0x1f).put(47, (byte) 3);
        Pdu pdu = Pdu.decode(bytes);
        assertEquals(UnknownPdu.class, pdu.getClass());
        assertArrayEquals(bytes.array(), encoded(pdu).array());
        assertEquals("Opcode(0x1f)", Opcode.name(pdu.opcode()));
        assertEquals("SCSI_COMMAND", Opcode.name(1));
    }

    /** Goal: a command does not change when the array from which it was created changes. */
    @Test
    void commandsAreImmutable() {
        byte[] cdb = new byte[16];
        ScsiCommand command = new ScsiCommand(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, cdb);
        cdb[0] = 1;
        command.cdb()[1] = 1;
        assertArrayEquals(new byte[16], command.cdb());
        assertThrows(IllegalArgumentException.class,
                () -> new ScsiCommand(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, new byte[15]));
    }

    /** Goal: order survives the wrap, and opposites are unordered. RFC 1982. */
    @Test
    void serialNumbers() {
        assertTrue(SerialNumber.before(-1, 0) && SerialNumber.after(0, -1));
        assertTrue(SerialNumber.within(0, -2, 3) && !SerialNumber.within(4, -2, 3));
        assertTrue(!SerialNumber.within(7, 7, 6), "an empty window");
        Random random = Seed.of(PduTest.class);
        for (int round = 0; round < 10_000; round++) {
            int at = random.nextInt();
            int distance = 1 + random.nextInt(Integer.MAX_VALUE);
            assertTrue(SerialNumber.before(at, at + distance));
            assertTrue(!SerialNumber.before(at + distance, at));
            int opposite = at + Integer.MIN_VALUE;
            assertTrue(!SerialNumber.before(at, opposite) && !SerialNumber.before(opposite, at));
        }
    }

    /** Goal: every number is decoded, both single-level forms are equal, others have no number. */
    @Test
    void luns() {
        for (int number = 0; number <= Lun.UNIT_MAX; number++) {
            assertEquals(number, Lun.number(Lun.of(number)));
        }
        assertTrue(Lun.isSameUnit(0x4007L << 48, Lun.of(7)));
        assertEquals(-1, Lun.number(0x0007_0001L << 32));
        assertEquals(-1, Lun.number(Lun.REPORT_LUNS));
        assertTrue(!Lun.isSameUnit(0x0007_0001L << 32, Lun.REPORT_LUNS));
        assertThrows(IllegalArgumentException.class, () -> Lun.of(-1));
        assertThrows(IllegalArgumentException.class, () -> Lun.of(Lun.UNIT_MAX + 1));
    }
}

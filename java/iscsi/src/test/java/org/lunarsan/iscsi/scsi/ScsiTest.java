package org.lunarsan.iscsi.scsi;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.OptionalLong;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;

/** Commands of a disk, and their answers. */
class ScsiTest {
    private static byte[] hex(String digits) {
        return HexFormat.of().parseHex(digits.replace(" ", ""));
    }

    private static ByteBuffer data(String digits) {
        return ByteBuffer.wrap(hex(digits));
    }

    private static void writes(String expected, Consumer<byte[]> command) {
        byte[] cdb = new byte[16];
        new Random(1).nextBytes(cdb);
        command.accept(cdb);
        byte[] whole = new byte[16];
        byte[] said = hex(expected);
        System.arraycopy(said, 0, whole, 0, said.length);
        assertArrayEquals(whole, cdb, expected);
    }

    /** Goal: each command is encoded as in the standards; nothing of the previous one is left. */
    @Test
    void commands() {
        long lba = 0x0102_0304_0506_0708L;
        writes("00", Cdb::testUnitReady);
        writes("12 00 00 00 60", cdb -> Cdb.inquiry(cdb, 96));
        writes("12 01 b0 01 00", cdb -> Cdb.vitalPage(cdb, VitalPage.BLOCK_LIMITS, 256));
        writes("9e 10 0000000000000000 00000020", Cdb::readCapacity16);
        writes("25", Cdb::readCapacity10);
        writes("1a 08 08 00 ff", Cdb::modeSenseCaching);
        writes("88 00 0102030405060708 00000009", cdb -> Cdb.read16(cdb, lba, 9));
        writes("8a 08 0102030405060708 00000009",
                cdb -> Cdb.write16(cdb, Cdb.FORCE_UNIT_ACCESS, lba, 9));
        writes("93 08 0102030405060708 ffffffff",
                cdb -> Cdb.writeSame16(cdb, Cdb.MAY_UNMAP, lba, -1));
        writes("91 00 0000000000000000 00000000", cdb -> Cdb.synchronizeCache16(cdb, 0, 0));
        writes("42 00 00000000 00 0018", cdb -> Cdb.unmap(cdb, 24));
        writes("a0 00 00 000000 00002008", cdb -> Cdb.reportLuns(cdb, 0x2008));
        ByteBuffer list = ByteBuffer.allocate(24);
        assertEquals(24, Cdb.unmapList(list, lba, 9));
        assertArrayEquals(hex("0016 0010 00000000 0102030405060708 00000009 00000000"),
                list.array());
    }

    /** Goal: possible sizes are accepted; others are rejected. */
    @Test
    void capacities() throws ScsiDataException {
        ByteBuffer sixteen = data("00000000000fffff 00000200 00 03 c000" + "00".repeat(16));
        assertEquals(new Capacity(1 << 20, 512, 4096, true, true, true),
                Capacity.decode16(sixteen));
        assertEquals(new Capacity(2, 4096, 4096, false, false, true),
                Capacity.decode16(data("0000000000000001 00001000")));
        assertEquals(new Capacity(1L << 32, 512, 512, false, false, false),
                Capacity.decode10(data("ffffffff 00000200")));
        for (String bad : new String[] {"", "0000000000000001 000010", "ffffffffffffffff 00000200",
            "7fffffffffffffff 00000200", "0040000000000000 00000200", "0000000000000001 00000000",
            "0000000000000001 00000201", "0000000000000001 80000000"}) {
            assertThrows(ScsiDataException.class, () -> Capacity.decode16(data(bad)), bad);
        }
        assertThrows(ScsiDataException.class, () -> Capacity.decode10(data("00")));
    }

    /** Goal: names are stripped of spaces and unprintable characters. */
    @Test
    void inquiry() throws ScsiDataException {
        ByteBuffer data = ByteBuffer.allocate(36).put(0, (byte) 0x20)
                .put(8, "LUNAR   disk\u0007           1 ".getBytes(), 0, 26);
        Inquiry inquiry = Inquiry.decode(data);
        assertEquals(1, inquiry.qualifier());
        assertEquals("LUNAR", inquiry.vendor());
        assertEquals("disk?", inquiry.product());
        assertThrows(ScsiDataException.class, () -> Inquiry.decode(ByteBuffer.allocate(35)));
    }

    /** Goal: the vital product data pages of a disk are decoded. */
    @Test
    void vitalPages() {
        VitalPage serial = VitalPage.decode(data("0080 0004 20 61 62 20"), 0x80).orElseThrow();
        assertEquals("ab", serial.serialNumber());
        assertTrue(VitalPage.decode(data("0000 0001 00"), 0x80).isEmpty());
        assertTrue(VitalPage.decode(data("0000 0002 00 83"), 0).orElseThrow().names(0x83));
        VitalPage names = VitalPage.decode(data("0083 0017 01 03 00 08 6001405000000001"
                + "02 01 00 03 616263 0103 0040"), 0x83).orElseThrow();
        assertEquals(List.of(new VitalPage.Designator(0, 3, "6001405000000001"),
                new VitalPage.Designator(0, 1, "abc")), names.designators());
        VitalPage limits = VitalPage.decode(data("00b0 003c 0000 0008 00001000 00000400 00000000"
                + "ffffffff 00000010 00000008 00000000 0000000000010000"), 0xb0).orElseThrow();
        assertEquals(new VitalPage.BlockLimits(8, 4096, 1024, 0xffff_ffffL, 16, 8, 65_536),
                limits.blockLimits());
        assertEquals(new VitalPage.Provisioning(true, true, true), VitalPage.decode(
                data("00b2 0004 00 e4 02 00"), 0xb2).orElseThrow().provisioning());
    }

    /** Goal: caching, write protection and LUNs are decoded. */
    @Test
    void others() throws ScsiDataException {
        assertEquals(new CachingMode(true, true, true),
                CachingMode.decode(data("17 00 90 00 08 12 04")));
        assertEquals(new CachingMode(false, false, false), CachingMode.decode(data("03000000")));
        assertArrayEquals(new long[] {0, 1L << 48}, ReportedLuns.decode(
                data("00000010 00000000 0000000000000000 0001000000000000")));
        assertArrayEquals(new long[] {0},
                ReportedLuns.decode(data("ffffffff 00000000 0000000000000000 00")));
    }

    /** Goal: both formats of sense are decoded, with and without INFORMATION. SPC-4 §4.5. */
    @Test
    void sense() {
        Sense medium = Sense.decode(hex("f0 00 03 00000123 0a 00000000 1100 00 000000"));
        assertEquals(new Sense(Sense.MEDIUM_ERROR, 0x1100, OptionalLong.of(0x123), false), medium);
        assertEquals("MEDIUM ERROR, additional code 1100, information 291", medium.toString());
        assertTrue(Sense.decode(hex("70 00 05 00000000 0a 00000000 2100 00 000000"))
                .is(Sense.ILLEGAL_REQUEST, Sense.LBA_OUT_OF_RANGE));
        assertEquals(new Sense(Sense.MEDIUM_ERROR, 0x0c00, OptionalLong.of(1L << 40), true),
                Sense.decode(hex("73 03 0c 00 000000 14 0206000000000000"
                        + "000a 80 00 0000010000000000")));
        assertEquals(OptionalLong.empty(), Sense.decode(hex("72 03 0c 00 000000 0c"
                + "000a 00 00 0000010000000000")).information());
        assertEquals(Sense.UNREADABLE, Sense.decode(new byte[0]));
        assertEquals(Sense.UNREADABLE, Sense.decode(hex("7f00")));
    }

    /** Goal: no input of a unit throws anything but the declared exceptions. */
    @Test
    void anyBytes() {
        Random random = Seed.of(ScsiTest.class);
        for (int round = 0; round < 50_000; round++) {
            byte[] bytes = Seed.bytes(random, random.nextInt(80));
            if (bytes.length > 3 && random.nextBoolean()) {
                bytes[0] = (byte) (0x70 + random.nextInt(4));
                bytes[1] = (byte) 0x83;
                bytes[2] = 0;
            }
            assertTrue(!Sense.decode(bytes).toString().isEmpty());
            ByteBuffer data = ByteBuffer.wrap(bytes);
            VitalPage.decode(data, 0x83).ifPresent(page -> {
                page.designators();
                page.blockLimits();
                page.provisioning();
                page.serialNumber();
                page.names(1);
            });
            try {
                ReportedLuns.decode(data);
                CachingMode.decode(data);
                Inquiry.decode(data);
                Capacity.decode10(data);
                Capacity.decode16(data);
            } catch (ScsiDataException refused) {
                assertTrue(!refused.getMessage().isEmpty());
            }
        }
    }
}

package org.lunarsan.iscsi.framing;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.framing.Deframer.Event;
import org.lunarsan.iscsi.pdu.BasicHeader;

/** Conversion from bytes to PDUs and back. */
class FramingTest {
    /** One PDU: its header segments and its data. */
    private record Sample(byte[] header, byte[] data) {
    }

    private static Sample sample(Random random, int ahsWords, int bytes) {
        byte[] header = Seed.bytes(random, BasicHeader.HEADER_BYTES + 4 * ahsWords);
        header[4] = (byte) ahsWords;
        ByteBuffer.wrap(header).putInt(4, ahsWords << 24 | bytes);
        return new Sample(header, Seed.bytes(random, bytes));
    }

    private static byte[] stream(List<Sample> samples, Digests digests) {
        Framer framer = new Framer(digests);
        ByteBuffer out = ByteBuffer.allocateDirect(1 << 16);
        for (Sample sample : samples) {
            int at = out.position();
            framer.endHeader(out.put(sample.header), at);
            out.put(sample.data);
            framer.endData(ByteBuffer.wrap(sample.data), 0, sample.data.length, out);
            assertEquals(0, out.position() % 4);
        }
        byte[] bytes = new byte[out.flip().remaining()];
        out.get(bytes);
        return bytes;
    }

    /** Reads the samples from pieces of the stream; {@code how}: see {@link #payload}. */
    private static void read(byte[] stream, int[] cuts, List<Sample> samples, Digests digests,
            int how) {
        Deframer deframer = new Deframer();
        deframer.expect(digests, BasicHeader.DATA_SEGMENT_BYTES_MAX);
        ByteArrayOutputStream data = new ByteArrayOutputStream();
        List<byte[]> headers = new ArrayList<>();
        List<byte[]> datas = new ArrayList<>();
        for (int cut = 0; cut < cuts.length - 1; cut++) {
            ByteBuffer piece = ByteBuffer.wrap(stream, cuts[cut], cuts[cut + 1] - cuts[cut]);
            for (Event event = deframer.next(piece); event != Event.NEED_MORE;
                    event = deframer.next(piece)) {
                switch (event) {
                    case HEADER -> {
                        byte[] header = new byte[deframer.header().remaining()];
                        deframer.header().get(0, header);
                        headers.add(header);
                        datas.add(new byte[0]);
                    }
                    case PAYLOAD -> data.writeBytes(payload(deframer, piece, how));
                    case PAYLOAD_END -> {
                        datas.set(datas.size() - 1, data.toByteArray());
                        data.reset();
                    }
                    default -> throw new AssertionError(event);
                }
            }
            assertFalse(piece.hasRemaining());
        }
        assertTrue(deframer.isBetweenPdus());
        assertEquals(samples.size(), headers.size());
        for (int at = 0; at < samples.size(); at++) {
            assertArrayEquals(samples.get(at).header, headers.get(at));
            assertArrayEquals(samples.get(at).data, datas.get(at));
        }
    }

    /**
     * Takes the payload (0), receives it whole (1) or in pieces (2), or makes it unreadable (3).
     */
    private static byte[] payload(Deframer deframer, ByteBuffer piece, int how) {
        int missing = Math.min(deframer.payloadMissing(), piece.remaining());
        int bytes = how >= 2 ? Math.min(missing, 3) : missing;
        ByteBuffer destination = ByteBuffer.allocate(bytes + 1);
        if (how == 0) {
            assertEquals(missing, deframer.take(piece, destination));
        } else {
            destination.put(0, piece, piece.position(), bytes);
            piece.position(piece.position() + bytes);
            if (how == 3) {
                deframer.receivedUnread(bytes);
            } else {
                deframer.received(destination, 0, bytes);
            }
        }
        return Arrays.copyOf(destination.array(), bytes);
    }

    private static final Digests[] ALL = {Digests.NONE, new Digests(true, false),
        new Digests(false, true), new Digests(true, true)};

    /** Goal: PDUs are decoded as they were sent, wherever the stream is cut in two. */
    @Test
    void cutAtEveryByte() {
        Random random = Seed.of(FramingTest.class);
        for (Digests digests : ALL) {
            List<Sample> samples = List.of(sample(random, 0, 0), sample(random, 2, 5),
                    sample(random, 0, 8), sample(random, 1, 1));
            byte[] stream = stream(samples, digests);
            for (int cut = 0; cut <= stream.length; cut++) {
                read(stream, new int[] {0, cut, stream.length}, samples, digests, cut % 4);
            }
        }
    }

    /** Goal: the same for random PDUs in random pieces. */
    @Test
    void cutAnywhere() {
        Random random = Seed.of(FramingTest.class);
        for (int round = 0; round < 3000; round++) {
            List<Sample> samples = new ArrayList<>();
            for (int left = random.nextInt(5); left >= 0; left--) {
                samples.add(sample(random, random.nextInt(6), random.nextInt(70)));
            }
            Digests digests = ALL[random.nextInt(ALL.length)];
            byte[] stream = stream(samples, digests);
            int[] cuts = random.ints(random.nextInt(20), 0, stream.length + 1).toArray();
            cuts = Arrays.copyOf(cuts, cuts.length + 2);
            cuts[cuts.length - 1] = stream.length;
            Arrays.sort(cuts);
            read(stream, cuts, samples, digests, round % 3);
        }
    }

    /** Goal: one wrong bit under a digest is detected, by that digest. */
    @Test
    void anyFlippedBitIsDetected() {
        Random random = Seed.of(FramingTest.class);
        Digests digests = new Digests(true, true);
        Sample sample = sample(random, 2, 10);
        byte[] stream = stream(List.of(sample), digests);
        int headEnd = 48 + 8 + 4;
        for (int bit = 0; bit < 8 * stream.length; bit++) {
            boolean saysLength = bit / 8 >= 4 && bit / 8 < 8;
            if (saysLength) {
                continue;
            }
            byte[] wrong = stream.clone();
            wrong[bit / 8] ^= (byte) (1 << bit % 8);
            Deframer deframer = new Deframer();
            deframer.expect(digests, 64);
            ByteBuffer input = ByteBuffer.wrap(wrong);
            Event event = deframer.next(input);
            if (bit < 8 * headEnd) {
                assertEquals(Event.HEADER_DIGEST_ERROR, event);
                assertEquals(Event.NEED_MORE, deframer.next(input));
                assertFalse(input.hasRemaining(), "consumed in silence");
            } else {
                assertEquals(Event.HEADER, event);
                assertEquals(Event.PAYLOAD, deframer.next(input));
                deframer.discard(input);
                assertEquals(Event.PAYLOAD_DIGEST_ERROR, deframer.next(input));
            }
        }
    }

    /** Goal: no input throws or makes no progress. */
    @Test
    void arbitraryBytesMakeProgress() {
        Random random = Seed.of(FramingTest.class);
        for (int round = 0; round < 500; round++) {
            Deframer deframer = new Deframer();
            deframer.expect(ALL[round % 4], round % 8 < 4 ? 8192 : 0xff_ffff);
            ByteBuffer input = ByteBuffer.wrap(Seed.bytes(random, random.nextInt(4000)));
            Event event = deframer.next(input);
            for (int steps = 0; event != Event.NEED_MORE; steps++) {
                assertTrue(steps < 4000);
                if (event == Event.PAYLOAD) {
                    assertTrue(deframer.discard(input) > 0);
                }
                event = deframer.next(input);
            }
            assertFalse(input.hasRemaining());
        }
    }

    /** Goal: a data segment longer than declared is rejected before any of it is read. */
    @Test
    void aDataSegmentThatIsTooLongIsRejected() {
        Deframer deframer = new Deframer();
        deframer.expect(Digests.NONE, 512);
        ByteBuffer input = ByteBuffer.allocate(1000).putInt(4, 513);
        assertEquals(Event.TOO_LONG, deframer.next(input));
        assertEquals(48, input.position());
        assertEquals(Event.NEED_MORE, deframer.next(input));
        assertThrows(IllegalArgumentException.class,
                () -> deframer.received(ByteBuffer.allocate(1), 0, 1));
    }

    /** Goal: a payload without padding and digest ends without a further byte. */
    @Test
    void payloadEndsAtOnce() {
        Deframer deframer = new Deframer();
        ByteBuffer input = ByteBuffer.allocate(56).putInt(4, 8);
        assertEquals(Event.HEADER, deframer.next(input.clear()));
        deframer.received(ByteBuffer.allocate(8), 0, 8);
        assertEquals(Event.PAYLOAD_END, deframer.next(ByteBuffer.allocate(0)));
        assertTrue(deframer.isBetweenPdus());
    }

    /** Goal: the digest of RFC 7143 Appendix A.4, a READ (10) command encoded by hand. */
    @Test
    void digestOfTheRfc() {
        ByteBuffer out = ByteBuffer.allocate(52).putShort(0, (short) 0x01c0).putInt(16, 0x14 << 24)
                .putInt(20, 0x400).putInt(24, 0x14).putInt(28, 0x18).putInt(32, 0x28 << 24)
                .put(40, (byte) 2).position(48);
        new Framer(new Digests(true, false)).endHeader(out, 0);
        assertEquals(0x563a96d9, out.getInt(48));
    }

    /** Goal: invalid lengths of Additional Header Segments are errors, not reads past the end. */
    @Test
    void invalidSegmentLengthsAreErrors() {
        String[] cases = {"00000100", "00010100", "ffff0100", "0006010001020304",
            "0004020001020300", "00000200", "0005030001020304", "0005000001020304", "00",
            "0005020000000009".repeat(2)};
        for (String ahs : cases) {
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(ahs));
            assertThrows(AhsViolation.class, () -> CommandSegments.decode(bytes), ahs);
        }
    }

    /**
     * Goal: a CDB of any length and a read length are decoded; other bytes give a value or an
     * error.
     */
    @Test
    void commandSegments() throws AhsViolation {
        Random random = Seed.of(FramingTest.class);
        for (int length = 1; length <= CommandSegments.CDB_BYTES_MAX; length++) {
            byte[] cdb = Seed.bytes(random, length);
            long expected = random.nextBoolean() ? CommandSegments.NO_READ_LENGTH
                    : random.nextInt() & 0xffff_ffffL;
            ByteBuffer out = ByteBuffer.allocate(300);
            int words = CommandSegments.encode(cdb, expected, out);
            assertEquals(out.flip().remaining(), 4 * words);
            CommandSegments found = CommandSegments.decode(out);
            assertEquals(expected, found.expectedReadBytes());
            assertArrayEquals(Arrays.copyOfRange(cdb, Math.min(16, length), length),
                    found.extendedCdb());
        }
        for (int round = 0; round < 20_000; round++) {
            byte[] bytes = Seed.bytes(random, random.nextInt(64));
            if (bytes.length > 2) {
                bytes[0] = 0;
                bytes[2] = (byte) random.nextInt(4);
            }
            try {
                CommandSegments.decode(ByteBuffer.wrap(bytes));
            } catch (AhsViolation expected) {
                assertFalse(expected.getMessage().isEmpty());
            }
        }
    }
}

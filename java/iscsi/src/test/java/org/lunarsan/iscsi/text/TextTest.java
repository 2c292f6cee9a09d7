package org.lunarsan.iscsi.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/** Text of peers: format, limits, negotiation. */
class TextTest {
    private static byte[] bytes(String text) {
        return text.replace(';', '\0').getBytes(StandardCharsets.UTF_8);
    }

    private static void refused(Kind kind, byte[] text) {
        TextViolation violation = assertThrows(TextViolation.class, () -> Pairs.parse(text));
        assertEquals(kind, violation.kind());
        assertEquals(0, violation.getStackTrace().length);
    }

    /** Goal: names are unique, found, and not longer than a key may be; defaults are valid. */
    @Test
    void theKeyTableIsConsistent() {
        for (Key key : Key.values()) {
            assertEquals(key, Key.named(key.wireName()));
            assertTrue(key.wireName().length() <= Pairs.KEY_BYTES_MAX);
            if (key.defaultValue().isPresent()) {
                String text = key.valueText(key.defaultValue().getAsInt());
                boolean known = switch (key.kind()) {
                    case ValueKind.Number number -> key.admissible(text) != Key.NONE;
                    case ValueKind.Word(List<String> words) -> words.contains(text);
                    case ValueKind.ListOf list -> key.wordNumber(text) != Key.NONE;
                    default -> Values.bool(text).isPresent();
                };
                assertTrue(known, key.wireName());
            }
        }
        assertNull(Key.named("headerdigest"));
    }

    /** Goal: text is parsed literally; padding included in the length is tolerated. */
    @Test
    void pairs() throws TextViolation {
        List<Pair> pairs = Pairs.parse(bytes("HeaderDigest=None;X-a=b=c;TargetAlias=;;;"));
        assertEquals(List.of(new Pair(Key.HEADER_DIGEST, "HeaderDigest", "None"),
                new Pair(null, "X-a", "b=c"), new Pair(Key.TARGET_ALIAS, "TargetAlias", "")),
                pairs);
        assertEquals(List.of(), Pairs.parse(new byte[0]));
        assertEquals(List.of(), Pairs.parse(new byte[3]));
        refused(Kind.UNTERMINATED, bytes("X-a=b"));
        refused(Kind.NO_VALUE, bytes("X-a=b;;X-c=d;"));
        refused(Kind.NO_VALUE, bytes("X-a;"));
        refused(Kind.KEY_NAME, bytes("=b;"));
        refused(Kind.KEY_NAME, bytes("x=b;"));
        refused(Kind.KEY_NAME, bytes("X" + "x".repeat(63) + "=b;"));
        refused(Kind.NOT_UTF8, new byte[] {'X', '=', (byte) 0xc3, 0});
        refused(Kind.VALUE_TOO_LONG, bytes("TargetAlias=" + "ü".repeat(128) + ";"));
        refused(Kind.VALUE_TOO_LONG, bytes("TargetName=" + "a".repeat(224) + ";"));
        refused(Kind.TOO_MANY_PAIRS, bytes("X-a=b;".repeat(Pairs.PAIRS_MAX + 1)));
        assertEquals(Pairs.PAIRS_MAX, Pairs.parse(bytes("X-a=b;".repeat(160))).size());
    }

    /** Goal: repeated keys are rejected, except TargetAddress; unknown ones are bounded. */
    @Test
    void seen() throws TextViolation {
        SentKeys seen = new SentKeys();
        Pair address = new Pair(Key.TARGET_ADDRESS, "TargetAddress", "h");
        seen.note(address);
        seen.note(address);
        for (int at = 0; at < Pairs.PAIRS_MAX; at++) {
            seen.note(new Pair(null, "X-" + at, ""));
        }
        assertEquals(Kind.TOO_MANY_PAIRS, assertThrows(TextViolation.class,
                () -> seen.note(new Pair(null, "X-more", ""))).kind());
        assertEquals(Kind.REPEATED, assertThrows(TextViolation.class,
                () -> seen.note(new Pair(null, "X-0", ""))).kind());
    }

    /** Goal: text in pieces is reassembled; text beyond the limit is rejected and discarded. */
    @Test
    void pieces() throws TextViolation {
        Random random = Seed.of(TextTest.class);
        byte[] text = Seed.bytes(random, 20_000);
        Segmenter segmenter = new Segmenter(text);
        Reassembler whole = new Reassembler();
        byte[] got = null;
        while (got == null) {
            byte[] piece = segmenter.next(1 + random.nextInt(3000));
            got = whole.add(ByteBuffer.wrap(piece), !segmenter.isEmpty());
        }
        assertArrayEquals(text, got);
        Reassembler small = new Reassembler(10);
        small.add(ByteBuffer.allocate(6), true);
        assertEquals(Kind.TEXT_TOO_LONG, assertThrows(TextViolation.class,
                () -> small.add(ByteBuffer.allocate(5), true)).kind());
        assertTrue(!small.isWaiting());
    }

    /** Goal: target records of RFC 7143 Appendix C are parsed; other text is rejected. */
    @Test
    void targets() throws TextViolation {
        List<TargetRecord> records = TargetRecord.parse(bytes(
                "TargetName=iqn.a;TargetAddress=10.0.0.1:3260,1;TargetAddress=[::1]:3260,65535;"
                + "X-other=1;TargetName=iqn.b;TargetAddress=host;"));
        assertEquals(2, records.size());
        assertEquals(new TargetRecord.Address("[::1]:3260", 65_535),
                records.get(0).addresses().get(1));
        assertEquals(new TargetRecord.Address("host", 1), records.get(1).addresses().getFirst());
        for (String bad : new String[] {"TargetAddress=h;", "TargetName=a;TargetAddress=,1;",
            "TargetName=a;TargetAddress=h,65536;", "SendTargets=Reject;",
            "TargetName=a;TargetAddress=h,x;"}) {
            assertThrows(TextViolation.class, () -> TargetRecord.parse(bytes(bad)), bad);
        }
    }

    /** Goal: an offer is clamped to the ranges of its keys. */
    @Test
    void offersAreClamped() throws TextViolation {
        Offer wild = Offer.initiator().toBuilder().maxConnections(-1).maxBurstBytes(1)
                .firstBurstBytes(Integer.MAX_VALUE).timeToWaitSeconds(9999)
                .headerDigest(List.of()).taskReporting(List.of(TaskReporting.FAST_ABORT)).build();
        TextBuilder text = new TextBuilder();
        new Negotiation(Role.INITIATOR, wild, SessionType.NORMAL, true).propose(text);
        String said = new String(text.toBytes(), StandardCharsets.UTF_8).replace('\0', ';');
        for (String pair : new String[] {"MaxConnections=1;", "MaxBurstLength=512;",
            "FirstBurstLength=512;", "DefaultTime2Wait=3600;", "HeaderDigest=None;",
            "TaskReporting=FastAbort,ResponseFence,RFC3720;"}) {
            assertTrue(said.contains(pair), said);
        }
        assertTrue(!text.toString().contains("FastAbort"), "text may hold proofs");
    }

    /**
     * Goal: no text throws anything but a violation. Method: valid fragments of text, combined and
     * damaged at random, are passed to all parsers.
     */
    @Test
    void anyText() {
        Random random = Seed.of(TextTest.class);
        Key[] keys = Key.values();
        String[] values = {"Yes", "No", "None", "CRC32C", "0", "1", "65536", "0x", "0xff", "0b",
            "0bAQ==", "Reject", "NotUnderstood", "~", "1~2", ",", "h:1,2", "\uffff", ""};
        for (int round = 0; round < 20_000; round++) {
            TextBuilder text = new TextBuilder();
            for (int pairs = random.nextInt(6); pairs >= 0; pairs--) {
                text.key(keys[random.nextInt(keys.length)], values[random.nextInt(values.length)]);
            }
            byte[] bytes = damaged(random, text.toBytes());
            Role role = random.nextBoolean() ? Role.INITIATOR : Role.TARGET;
            Negotiation negotiation =
                    new Negotiation(role, Offer.target(), SessionType.NORMAL, random.nextBoolean());
            negotiation.propose(new TextBuilder());
            try {
                negotiation.receive(Pairs.parse(bytes), new TextBuilder());
                negotiation.sessionParameters();
                negotiation.connectionParameters();
                TargetRecord.parse(bytes);
            } catch (TextViolation violation) {
                assertTrue(!violation.getMessage().isEmpty());
            }
            String value = new String(bytes, StandardCharsets.ISO_8859_1);
            Values.number(value);
            Values.range(value);
            Values.binary("0b" + value, 100);
            Values.binary("0x" + value, 100);
        }
    }

    private static byte[] damaged(Random random, byte[] text) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        int cut = random.nextInt(text.length);
        out.write(text, 0, cut);
        if (random.nextInt(3) == 0) {
            out.writeBytes(Seed.bytes(random, random.nextInt(4)));
        }
        out.writeBytes(Arrays.copyOfRange(text, cut, text.length));
        return out.toByteArray();
    }

    /** Goal: ranges are parsed. */
    @Test
    void ranges() {
        assertArrayEquals(new long[] {1, 16}, Values.range("1~0x10").orElseThrow());
        assertTrue(Values.range("2~1").isEmpty());
        assertTrue(Values.range("2").isEmpty());
    }
}

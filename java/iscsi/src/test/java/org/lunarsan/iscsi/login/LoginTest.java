package org.lunarsan.iscsi.login;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LoginFlags;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.Reassembler;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.Values;

/** Logins beyond the vectors: endless targets, secrets, and random bytes. */
class LoginTest {
    private static final int TAG = 0x1234;
    private static final int STAY = LoginFlags.stage(LoginFlags.OPERATIONAL_NEGOTIATION);

    private static Optional<ChapAnswer> chap(boolean mutual) {
        Credential target = new Credential("target", Secret.of("the target's secret"));
        return Optional.of(new ChapAnswer(List.of(ChapAlgorithm.SHA256, ChapAlgorithm.MD5),
                new Credential("initiator", Secret.of("our own secret")),
                mutual ? Optional.of(target) : Optional.empty()));
    }

    private static LoginOptions options(Optional<ChapAnswer> chap) {
        return new LoginOptions("iqn.a", Optional.empty(), Optional.of("iqn.b"),
                SessionType.NORMAL, 1, 0, 1, TAG, 100, Offer.initiator(), chap, new byte[33]);
    }

    private static LoginStep say(InitiatorLogin login, int flags, byte[] text) {
        ByteBuffer header = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        new LoginResponse(Opcode.LOGIN_RESPONSE, flags, 0, 0, 0, text.length, 1, 1, TAG, 5, 100,
                131, 0).encode(header);
        return login.receive(header.flip(), ByteBuffer.wrap(text));
    }

    /** Goal: known answers of all four hashes, from {@code testdata/chap.txt}. */
    @Test
    void knownAnswers() throws IOException {
        int rows = 0;
        for (String line : Files.readAllLines(testdata().resolve("chap.txt"))) {
            if (line.startsWith("#")) {
                continue;
            }
            String[] words = line.split(" ");
            ChapAlgorithm algorithm =
                    ChapAlgorithm.numbered(Long.parseLong(words[0])).orElseThrow();
            Secret secret = new Secret(words[2].equals("-") ? new byte[0]
                    : HexFormat.of().parseHex(words[2]));
            Challenge challenge =
                    Challenge.received(algorithm, words[1], "0x" + words[3]).orElseThrow();
            byte[] expected = HexFormat.of().parseHex(words[4]);
            assertArrayEquals(expected, challenge.response(secret));
            assertTrue(challenge.isAnsweredBy("0x" + words[4], secret));
            expected[0] ^= 1;
            assertTrue(!challenge.isAnsweredBy(Values.hexText(expected), secret));
            assertTrue(!challenge.isAnsweredBy("0x" + words[4] + "00", secret));
            rows++;
        }
        assertEquals(20, rows);
    }

    private static Path testdata() {
        Path at = Path.of("").toAbsolutePath();
        while (!Files.exists(at.resolve("testdata/chap.txt"))) {
            at = at.getParent();
        }
        return at.resolve("testdata");
    }

    /** Goal: nothing printable contains a secret, a CHAP response or our challenge. */
    @Test
    void nothingIsPrinted() {
        LoginOptions options = options(chap(true));
        InitiatorLogin login = new InitiatorLogin(options);
        login.start();
        int stay = LoginFlags.stage(LoginFlags.SECURITY_NEGOTIATION);
        say(login, stay, "AuthMethod=CHAP\0".getBytes(StandardCharsets.UTF_8));
        LoginStep step = say(login, stay,
                "CHAP_A=7\0CHAP_I=1\0CHAP_C=0x01\0".getBytes(StandardCharsets.UTF_8));
        LoginStep.Send proof = assertInstanceOf(LoginStep.Send.class, step);
        String text = new String(proof.data(), StandardCharsets.UTF_8);
        assertTrue(text.contains("CHAP_R=0x"), text);
        String printed = step + " " + options + " " + options.chap() + " " + login;
        assertTrue(!printed.contains("CHAP_R") && !printed.contains("own secret")
                && !printed.contains("target's secret"), printed);
        assertEquals(Secret.of("a"), Secret.of("a"));
        assertEquals(Secret.of("a").hashCode(), Secret.of("b").hashCode());
        assertTrue(!Secret.of("a").equals(Secret.of("b")));
    }

    /** Goal: a login or text that never ends is aborted. */
    @Test
    void withoutEnd() {
        InitiatorLogin login = new InitiatorLogin(options(Optional.empty()));
        login.start();
        int rounds = 0;
        while (say(login, STAY, new byte[0]) instanceof LoginStep.Send) {
            rounds++;
        }
        assertEquals(InitiatorLogin.LOGIN_PDUS_MAX, rounds);
        assertTrue(login.isOver());
        login = new InitiatorLogin(options(Optional.empty()));
        login.start();
        int bytes = 0;
        byte[] piece = "x".repeat(8192).getBytes(StandardCharsets.UTF_8);
        while (say(login, STAY | LoginFlags.CONTINUE, piece) instanceof LoginStep.Send) {
            bytes += piece.length;
        }
        assertEquals(Reassembler.TEXT_BYTES_MAX, bytes);
    }

    /** Goal: the kinds of failure are distinguishable, and carry advice. */
    @Test
    void failures() {
        InitiatorLogin login = new InitiatorLogin(options(Optional.empty()));
        login.start();
        ByteBuffer reject = ByteBuffer.allocate(48).put(0, (byte) Opcode.REJECT);
        LoginStep.Failed failed =
                assertInstanceOf(LoginStep.Failed.class, login.receive(reject, reject));
        assertInstanceOf(LoginViolationException.class, failed.reason());
        assertTrue(failed.reason().getMessage().contains("iqn.b"), failed.toString());
        LoginException later = Refusal.of(options(Optional.empty()), 0x0301, new byte[0], null);
        assertInstanceOf(TargetErrorException.class, later);
        assertInstanceOf(LoginViolationException.class,
                Refusal.of(options(Optional.empty()), 0x0401, new byte[0], null));
        assertTrue(Refusal.of(options(Optional.empty()), 0x0201, new byte[0], null).getMessage()
                .contains("check the CHAP name and secret"));
        assertThrows(IllegalArgumentException.class, () -> new LoginOptions("a",
                Optional.empty(), Optional.empty(), SessionType.DISCOVERY, 1, 0, 1, TAG, 1,
                Offer.initiator(), Optional.empty(), new byte[32]));
    }

    /** Goal: no input of a target throws, in any state, and each login ends. */
    @Test
    void anyBytes() {
        Random random = Seed.of(LoginTest.class);
        String[] texts = {"AuthMethod=CHAP\0", "AuthMethod=None\0", "CHAP_A=7\0CHAP_I=1\0"
                + "CHAP_C=0x0102\0", "CHAP_N=target\0CHAP_R=0x00\0", "", "MaxBurstLength=512\0",
            "X-a=1\0", "TargetAddress=h\0", "HeaderDigest=None\0", "TargetPortalGroupTag=1\0"};
        int[] statuses = {0, 0, 0, 0, 0x101, 0x201, 0x300, 0x999};
        for (int round = 0; round < 20_000; round++) {
            boolean withChap = random.nextBoolean();
            InitiatorLogin login = new InitiatorLogin(
                    options(withChap ? chap(random.nextBoolean()) : Optional.empty()));
            LoginStep step = login.start();
            int stage = withChap ? 0 : 1;
            for (int step2 = 0; step instanceof LoginStep.Send && step2 < 300; step2++) {
                byte[] text = texts[random.nextInt(texts.length)].getBytes(StandardCharsets.UTF_8);
                if (random.nextInt(8) == 0 && text.length > 0) {
                    text[random.nextInt(text.length)] = (byte) random.nextInt();
                }
                int flags = random.nextInt(8) == 0 ? random.nextInt(256)
                        : LoginFlags.stage(stage) | (random.nextInt(3) == 0 ? 0x80 | 1 + 2 * stage
                                : random.nextInt(4) == 0 ? LoginFlags.CONTINUE : 0);
                ByteBuffer header = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
                new LoginResponse(Opcode.LOGIN_RESPONSE, flags, 0, 0, 0, text.length, 1,
                        random.nextInt(2), TAG, 5, 100, 131,
                        statuses[random.nextInt(statuses.length)]).encode(header);
                step = login.receive(header.flip(), ByteBuffer.wrap(text));
                boolean moves = step instanceof LoginStep.Send && (flags & 0x80) != 0;
                stage = moves ? LoginFlags.next(flags) : stage;
            }
            assertTrue(!(step instanceof LoginStep.Send) && login.isOver());
        }
    }
}

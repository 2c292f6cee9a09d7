package org.lunarsan.iscsi.login;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LoginFlags;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.KeyStage;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Pairs;
import org.lunarsan.iscsi.text.Role;
import org.lunarsan.iscsi.text.Rule;
import org.lunarsan.iscsi.text.Senders;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TaskReporting;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.Use;
import org.lunarsan.iscsi.text.Values;

/** The keys of a login, checked against the table {@link Key}. */
class KeysTest {
    private static final int TAG = 0x1234;
    private static final int LOGINS = 2000;
    private static final Credential US = new Credential("initiator", Secret.of("our own secret"));
    private static final Credential TARGET =
            new Credential("target", Secret.of("the target's secret"));

    /**
     * Fault: SessionType was sent on every login, and LIO refused each further connection for it.
     *
     * <p>Goal: in any login (leading or not, discovery or normal, with CHAP in one direction, in
     * both or none, any offer), an initiator may send each of the keys sent, in their stage; and
     * the names that every connection requires are present.
     */
    @Test
    void eachKeyIsAllowedInItsStage() throws Exception {
        Random random = Seed.of(KeysTest.class);
        Set<Key> sent = EnumSet.noneOf(Key.class);
        for (int round = 0; round < LOGINS; round++) {
            sent.addAll(new Talk(random, options(random)).toTheEnd());
        }
        assertTrue(sent.containsAll(EnumSet.of(Key.SESSION_TYPE, Key.TASK_REPORTING,
                Key.PROTOCOL_LEVEL, Key.CHAP_R, Key.CHAP_C, Key.INITIATOR_ALIAS)), sent.toString());
    }

    /**
     * Fault: SessionType was sent on a further connection too.
     *
     * <p>Goal: a further connection names both nodes, negotiates for itself, and sends no other
     * keys; likewise one that replaces a lost connection, under the same CID.
     */
    @Test
    void aFurtherConnectionSendsItsOwnKeysOnly() throws Exception {
        Offer offer = Offer.initiator();
        for (int cid : new int[] {0, 1}) {
            LoginStep step = new InitiatorLogin(new LoginOptions("iqn.a", Optional.empty(),
                    Optional.of("iqn.b"), SessionType.NORMAL, 1, 7, cid, TAG, 100, offer,
                    Optional.empty(), new byte[Challenge.ENTROPY_BYTES])).start();
            LoginStep.Send send = assertInstanceOf(LoginStep.Send.class, step);
            List<Key> keys = Pairs.parse(send.data()).stream().map(Pair::key).toList();
            assertEquals(List.of(Key.INITIATOR_NAME, Key.TARGET_NAME, Key.HEADER_DIGEST,
                    Key.DATA_DIGEST, Key.MAX_RECV_DATA_SEGMENT_LENGTH), keys);
        }
    }

    private static LoginOptions options(Random random) {
        boolean discovery = random.nextInt(4) == 0;
        boolean leading = discovery || random.nextBoolean();
        Optional<String> alias =
                random.nextBoolean() ? Optional.of("an alias") : Optional.empty();
        Optional<String> target = discovery ? Optional.empty() : Optional.of("iqn.b");
        Optional<ChapAnswer> chap = random.nextInt(3) == 0 ? Optional.empty()
                : Optional.of(new ChapAnswer(List.of(ChapAlgorithm.SHA256, ChapAlgorithm.MD5), US,
                        random.nextBoolean() ? Optional.of(TARGET) : Optional.empty()));
        return new LoginOptions("iqn.a", alias, target,
                discovery ? SessionType.DISCOVERY : SessionType.NORMAL, 1, leading ? 0 : 7,
                random.nextInt(3), TAG, 100, offer(random), chap,
                Seed.bytes(random, Challenge.ENTROPY_BYTES));
    }

    private static Offer offer(Random random) {
        List<TaskReporting> reporting = random.nextBoolean() ? List.of(TaskReporting.RFC3720)
                : List.of(TaskReporting.FAST_ABORT);
        List<Digest> digests = random.nextBoolean() ? List.of(Digest.CRC32C, Digest.NONE)
                : List.of(Digest.NONE);
        return Offer.initiator().toBuilder().headerDigest(digests).dataDigest(digests)
                .maxConnections(1 + random.nextInt(8)).initialR2t(random.nextBoolean())
                .immediateData(random.nextBoolean()).maxBurstBytes(512 + random.nextInt(1 << 20))
                .firstBurstBytes(512 + random.nextInt(1 << 20)).taskReporting(reporting)
                .protocolLevel(1 + random.nextInt(2)).build();
    }

    /** One login with a correct target. */
    private static final class Talk {
        private final Random random;
        private final LoginOptions options;
        private final InitiatorLogin login;
        private final Negotiation negotiation;
        private final Set<Key> sent = EnumSet.noneOf(Key.class);

        Talk(Random random, LoginOptions options) {
            this.random = random;
            this.options = options;
            login = new InitiatorLogin(options);
            negotiation = new Negotiation(Role.TARGET, Offer.target(), options.sessionType(),
                    options.tsih() == 0);
        }

        Set<Key> toTheEnd() throws TextViolation {
            LoginStep step = login.start();
            boolean first = true;
            while (step instanceof LoginStep.Send send) {
                List<Pair> pairs = Pairs.parse(send.data());
                checkKeys(send.header(), pairs, first);
                first = false;
                step = answer(send.header(), pairs);
            }
            assertInstanceOf(LoginStep.Complete.class, step, () -> "" + options);
            return sent;
        }

        private void checkKeys(LoginRequest request, List<Pair> pairs, boolean first) {
            boolean security = LoginFlags.current(request.flags())
                    == LoginFlags.SECURITY_NEGOTIATION;
            KeyStage stage = security ? KeyStage.SECURITY : KeyStage.OPERATIONAL;
            for (Pair pair : pairs) {
                String where = pair.name() + " in " + options + ", " + stage;
                Key key = pair.key();
                assertNotNull(key, where);
                assertTrue(sent.add(key), () -> "twice: " + where);
                assertNotEquals(Senders.TARGET, key.senders(), where);
                assertNotEquals(Use.FULL_FEATURE_ONLY, key.use(), where);
                assertTrue(options.tsih() == 0 || key.use() != Use.LEADING_ONLY, where);
                assertTrue(key.stage() == KeyStage.ANY || key.stage() == stage, where);
                assertTrue(options.sessionType() == SessionType.NORMAL || !key.isNormalOnly(),
                        where);
            }
            if (first) {
                assertTrue(sent.contains(Key.INITIATOR_NAME), "" + options);
                assertEquals(options.targetName().isPresent(), sent.contains(Key.TARGET_NAME));
                assertTrue(options.tsih() != 0 || sent.contains(Key.SESSION_TYPE), "" + options);
            }
        }

        private LoginStep answer(LoginRequest request, List<Pair> pairs) throws TextViolation {
            TextBuilder text = new TextBuilder();
            List<Pair> rest = new ArrayList<>(pairs);
            rest.removeIf(pair -> pair.key().rule() == Rule.DECLARE
                    && pair.key().stage() == KeyStage.ANY);
            int stage = LoginFlags.current(request.flags());
            boolean stays = false;
            if (stage == LoginFlags.SECURITY_NEGOTIATION) {
                stays = prove(rest, text);
            } else {
                negotiation.receive(rest, text);
                negotiation.declare(text);
            }
            boolean asks = (request.flags() & LoginFlags.TRANSIT) != 0 && !stays;
            return respond(asks ? LoginFlags.transit(stage, LoginFlags.next(request.flags()))
                    : LoginFlags.stage(stage), text.toBytes());
        }

        /** Performs one step of the security stage. True if it continues. */
        private boolean prove(List<Pair> pairs, TextBuilder text) {
            String method = value(pairs, Key.AUTH_METHOD);
            if (method != null) {
                boolean none = method.contains("None") && random.nextBoolean();
                text.key(Key.AUTH_METHOD, none ? "None" : "CHAP");
                return !none;
            }
            if (value(pairs, Key.CHAP_A) != null) {
                Challenge challenge = Challenge.fresh(ChapAlgorithm.SHA256,
                        Seed.bytes(random, Challenge.ENTROPY_BYTES));
                text.key(Key.CHAP_A, Integer.toString(ChapAlgorithm.SHA256.number()));
                text.key(Key.CHAP_I, challenge.identifier());
                text.key(Key.CHAP_C, challenge.text());
                return true;
            }
            String theirs = value(pairs, Key.CHAP_C);
            if (theirs != null) {
                Challenge challenge = Challenge.received(ChapAlgorithm.SHA256,
                        value(pairs, Key.CHAP_I), theirs).orElseThrow();
                text.key(Key.CHAP_N, TARGET.user());
                text.key(Key.CHAP_R, Values.hexText(challenge.response(TARGET.secret())));
            }
            return false;
        }

        private static String value(List<Pair> pairs, Key key) {
            return pairs.stream().filter(pair -> pair.key() == key).map(Pair::value).findFirst()
                    .orElse(null);
        }

        private LoginStep respond(int flags, byte[] text) {
            ByteBuffer header = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
            boolean last = (flags & LoginFlags.TRANSIT) != 0
                    && LoginFlags.next(flags) == LoginFlags.FULL_FEATURE_PHASE;
            int tsih = last ? 7 : options.tsih();
            new LoginResponse(Opcode.LOGIN_RESPONSE, flags, 0, 0, 0, text.length, 1, tsih, TAG, 5,
                    100, 131, 0).encode(header);
            return login.receive(header.flip(), ByteBuffer.wrap(text));
        }
    }
}

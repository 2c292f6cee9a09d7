package org.lunarsan.initiator;

import java.io.EOFException;
import java.io.IOException;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.lunarsan.iscsi.login.Challenge;
import org.lunarsan.iscsi.login.Secret;
import org.lunarsan.iscsi.pdu.LoginFlags;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Pairs;
import org.lunarsan.iscsi.text.Role;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.Use;

/** The login of a {@link MiniConnection} on the target's side. Threads: those of its wire. */
final class MiniLogin {
    private static final Set<Key> NAMES = Set.of(Key.INITIATOR_NAME, Key.INITIATOR_ALIAS,
            Key.TARGET_NAME, Key.SESSION_TYPE, Key.AUTH_METHOD);
    private final MiniConnection wire;
    private final Negotiation negotiation;
    private final boolean leading;
    private Challenge challenge;
    private boolean proven;

    MiniLogin(MiniConnection wire, LoginRequest first) {
        this.wire = wire;
        leading = first.tsih() == 0;
        negotiation = new Negotiation(Role.TARGET, wire.target.offer, SessionType.NORMAL, leading);
    }

    /** Answers one request. True when the login is complete. */
    boolean answer(LoginRequest request, byte[] data) throws IOException {
        MiniTarget target = wire.target;
        TextBuilder text = new TextBuilder();
        if (target.loginStatus != 0) {
            if (target.redirect != null) {
                text.key(Key.TARGET_ADDRESS, target.redirect);
            }
            return refuse(request, target.loginStatus, text);
        }
        try {
            return answer(request, Pairs.parse(data), text);
        } catch (TextViolation exception) {
            throw new EOFException("the initiator writes nonsense: " + exception.getMessage());
        }
    }

    private boolean answer(LoginRequest request, List<Pair> pairs, TextBuilder text)
            throws IOException, TextViolation {
        int stage = LoginFlags.current(request.flags());
        boolean asks = (request.flags() & LoginFlags.TRANSIT) != 0;
        if (stage == LoginFlags.SECURITY_NEGOTIATION) {
            boolean through = prove(pairs, text);
            if (!through && proven) {
                return refuse(request, LoginStatus.AUTHENTICATION_FAILURE, new TextBuilder());
            }
            int flags = through && asks
                    ? LoginFlags.transit(stage, LoginFlags.next(request.flags()))
                    : LoginFlags.stage(stage);
            send(request, flags, 0, text);
            return false;
        }
        if (wire.target.chap.isPresent() && !proven) {
            return refuse(request, LoginStatus.AUTHENTICATION_FAILURE, text);
        }
        if (pairs.stream().anyMatch(pair -> wire.target.closesOn.contains(pair.key()))) {
            throw new EOFException("a key that it does not know");
        }
        if (!leading && pairs.stream().anyMatch(MiniLogin::isOfLeading)) {
            // LIO does the same.
            return refuse(request, LoginStatus.INITIATOR_ERROR, text);
        }
        boolean first = pairs.stream().anyMatch(pair -> pair.key() == Key.INITIATOR_NAME);
        negotiation.receive(pairs.stream().filter(pair -> !NAMES.contains(pair.key())).toList(),
                text);
        if (first && leading) {
            text.key(Key.TARGET_PORTAL_GROUP_TAG, wire.target.group);
        }
        negotiation.declare(text);
        int flags = asks ? LoginFlags.transit(stage, LoginFlags.next(request.flags()))
                : LoginFlags.stage(stage);
        boolean through = asks && LoginFlags.next(request.flags()) == LoginFlags.FULL_FEATURE_PHASE;
        if (through) {
            wire.established(request);
        }
        send(request, flags, 0, text);
        if (through) {
            wire.session = leading ? negotiation.sessionParameters() : wire.target.wires.stream()
                    .filter(other -> other != wire && other.isid == request.isid()).findFirst()
                    .map(other -> other.session).orElse(wire.session);
            wire.connection = negotiation.connectionParameters();
            wire.digests = wire.connection.digests();
        }
        return through;
    }

    private static boolean isOfLeading(Pair pair) {
        return pair.key() != null && pair.key().use() == Use.LEADING_ONLY;
    }

    /** Performs one step of the security stage. True when it is complete. */
    private boolean prove(List<Pair> pairs, TextBuilder text) {
        Map<Key, String> keys = pairs.stream().filter(pair -> pair.key() != null)
                .collect(Collectors.toMap(Pair::key, Pair::value, (one, other) -> one));
        Optional<MiniTarget.Chap> chap = wire.target.chap;
        if (keys.containsKey(Key.AUTH_METHOD)) {
            text.key(Key.AUTH_METHOD, chap.isPresent() ? "CHAP" : "None");
            text.key(Key.TARGET_PORTAL_GROUP_TAG, wire.target.group);
            return chap.isEmpty();
        }
        if (keys.containsKey(Key.CHAP_A)) {
            MiniTarget.Chap wanted = chap.orElseThrow();
            String number = Integer.toString(wanted.algorithm().number());
            boolean offered = Stream.of(keys.get(Key.CHAP_A).split(",")).anyMatch(number::equals);
            byte[] entropy = new byte[Challenge.ENTROPY_BYTES];
            entropy[0] = 5;
            entropy[9] = 9;
            challenge = Challenge.fresh(wanted.algorithm(), entropy);
            text.key(Key.CHAP_A, offered ? number : "5");
            text.key(Key.CHAP_I, challenge.identifier());
            text.key(Key.CHAP_C, challenge.text());
            return false;
        }
        return check(keys, chap.orElseThrow(), text);
    }

    private boolean check(Map<Key, String> keys, MiniTarget.Chap chap, TextBuilder text) {
        proven = true;
        boolean right = chap.user().equals(keys.get(Key.CHAP_N))
                && challenge.isAnsweredBy(keys.get(Key.CHAP_R), Secret.of(chap.secret()));
        if (right && keys.containsKey(Key.CHAP_C) && chap.ownUser() != null) {
            Challenge theirs = Challenge.received(chap.algorithm(), keys.get(Key.CHAP_I),
                    keys.get(Key.CHAP_C)).orElseThrow();
            text.key(Key.CHAP_N, chap.ownUser());
            text.key(Key.CHAP_R, "0x" + HexFormat.of()
                    .formatHex(theirs.response(Secret.of(chap.ownSecret()))));
        }
        return right;
    }

    private boolean refuse(LoginRequest request, int status, TextBuilder text)
            throws IOException {
        send(request, 0, status, text);
        throw new EOFException("refused");
    }

    private void send(LoginRequest request, int flags, int status, TextBuilder text)
            throws IOException {
        byte[] bytes = text.toBytes();
        boolean last = (flags & LoginFlags.TRANSIT) != 0
                && LoginFlags.next(flags) == LoginFlags.FULL_FEATURE_PHASE;
        int tsih = last || !leading ? wire.target.tsih : 0;
        if (status == 0) {
            wire.expCmdSn = request.cmdSn();
        }
        wire.send(new LoginResponse(Opcode.LOGIN_RESPONSE, flags, 0, 0, 0, bytes.length,
                request.isid(), tsih, request.initiatorTaskTag(), wire.statSn++, wire.expCmdSn,
                wire.maxCmdSn(), status), bytes);
    }
}

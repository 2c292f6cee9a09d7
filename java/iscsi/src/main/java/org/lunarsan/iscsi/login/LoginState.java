package org.lunarsan.iscsi.login;

import static org.lunarsan.iscsi.pdu.LoginFlags.FULL_FEATURE_PHASE;
import static org.lunarsan.iscsi.pdu.LoginFlags.OPERATIONAL_NEGOTIATION;

import java.util.EnumSet;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.KeyStage;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Role;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.TextViolation.Kind;
import org.lunarsan.iscsi.text.Values;

/**
 * A state of the login, which handles the next text of the target. Each state is consumed by its
 * {@code handle}, which returns the next one: a step cannot happen twice.
 *
 * <p>Threads: for one thread.
 */
sealed interface LoginState {
    /** No stage is proposed or granted. */
    int NO_STAGE = -1;

    /** Handles one complete text of the target; {@code granted} is the stage to which it leads. */
    LoginState handle(LoginOptions options, List<Pair> pairs, int granted, TextBuilder answers)
            throws LoginViolation, TextViolation;

    /** Returns the stage that the next request proposes. */
    int proposedStage();

    /** Returns the stage of this state. */
    default KeyStage stage() {
        return KeyStage.SECURITY;
    }

    /** Returns the hash of the CHAP response that the target has not answered yet, or null. */
    default ChapAlgorithm chapAlgorithm() {
        return null;
    }

    /** True when our proposals were sent, and include keys that RFC 3720 does not define. */
    default boolean hasProposedNewerKeys() {
        return false;
    }

    /** Thrown when the target broke a rule that does not concern text, or did not prove itself. */
    final class LoginViolation extends Exception {
        private static final long serialVersionUID = 1;

        LoginViolation(String what) {
            super(what, null, false, false);
        }
    }

    /** Returns the state after the first request, whose keys are added to {@code text}. */
    static LoginState first(LoginOptions options, TextBuilder text) throws LoginViolation {
        if (options.chap().isEmpty()) {
            return ExpectOperational.propose(options, text);
        }
        ChapAnswer chap = options.chap().get();
        // RFC 7143 §9.2.1: the secrets of both directions must differ.
        boolean oneSecret = chap.expectTarget()
                .filter(target -> target.secret().equals(chap.credential().secret())).isPresent();
        if (oneSecret) {
            throw new LoginViolation("the same secret is used for both directions; set another"
                    + " one for the target");
        }
        // A target that must prove itself cannot choose None.
        text.key(Key.AUTH_METHOD, chap.expectTarget().isPresent() ? "CHAP" : "CHAP,None");
        return new ExpectMethod(chap);
    }

    /** Handles one complete text, in any state. */
    default LoginState next(LoginOptions options, List<Pair> pairs, int granted,
            TextBuilder answers) throws LoginViolation, TextViolation {
        for (Pair pair : pairs) {
            if (pair.key().stage() != stage()) {
                throw new TextViolation(Kind.WRONG_STAGE, pair.name());
            }
        }
        LoginState state = handle(options, pairs, granted, answers);
        boolean leaves = granted == OPERATIONAL_NEGOTIATION && stage() == KeyStage.SECURITY;
        return leaves ? ExpectOperational.propose(options, answers) : state;
    }

    /** AuthMethod was proposed. */
    record ExpectMethod(ChapAnswer chap) implements LoginState {
        @Override
        public LoginState handle(LoginOptions options, List<Pair> pairs, int granted,
                TextBuilder answers) throws LoginViolation, TextViolation {
            if (pairs.size() != 1 || pairs.getFirst().key() != Key.AUTH_METHOD) {
                throw new LoginViolation("the target did not select an AuthMethod");
            }
            String method = pairs.getFirst().value();
            if (method.equals("CHAP") && granted == NO_STAGE) {
                answers.key(Key.CHAP_A, ChapAlgorithm.list(chap.algorithms()));
                return new ExpectChallenge(chap);
            }
            if (method.equals("None") && chap.expectTarget().isEmpty()) {
                return new ExpectProof(chap, null, null);
            }
            throw new TextViolation(Kind.BAD_ANSWER, Key.AUTH_METHOD.wireName());
        }

        @Override
        public int proposedStage() {
            return OPERATIONAL_NEGOTIATION;
        }
    }

    /** CHAP_A was proposed. */
    record ExpectChallenge(ChapAnswer chap) implements LoginState {
        @Override
        public LoginState handle(LoginOptions options, List<Pair> pairs, int granted,
                TextBuilder answers) throws LoginViolation, TextViolation {
            checkAllowed(pairs, EnumSet.of(Key.CHAP_A, Key.CHAP_I, Key.CHAP_C));
            ChapAlgorithm algorithm = algorithm(required(pairs, Key.CHAP_A));
            String chapI = required(pairs, Key.CHAP_I);
            Challenge theirs = Challenge.received(algorithm, chapI, required(pairs, Key.CHAP_C))
                    .orElseThrow(() -> new TextViolation(Kind.BAD_VALUE, "CHAP_C"));
            answers.key(Key.CHAP_N, chap.credential().user());
            byte[] response = theirs.response(chap.credential().secret());
            answers.key(Key.CHAP_R, Values.hexText(response));
            if (chap.expectTarget().isEmpty()) {
                return new ExpectProof(chap, null, algorithm);
            }
            Challenge ours = Challenge.fresh(algorithm, options.entropy());
            if (ours.isReflectionOf(theirs)) {
                throw new LoginViolation(
                        "the target used the same CHAP challenge as this initiator");
            }
            answers.key(Key.CHAP_I, ours.identifier());
            answers.key(Key.CHAP_C, ours.text());
            return new ExpectProof(chap, ours, algorithm);
        }

        private ChapAlgorithm algorithm(String chapA) throws TextViolation {
            OptionalLong number = Values.number(chapA);
            return ChapAlgorithm.numbered(number.orElse(0)).filter(chap.algorithms()::contains)
                    .orElseThrow(() -> new TextViolation(Kind.BAD_ANSWER, "CHAP_A"));
        }

        @Override
        public int proposedStage() {
            return NO_STAGE;
        }
    }

    /**
     * Our CHAP response was sent; the target may have to prove itself.
     *
     * @param ours our challenge until it is answered, or null
     * @param chapAlgorithm the hash of our response; null if none was required
     */
    record ExpectProof(ChapAnswer chap, Challenge ours, ChapAlgorithm chapAlgorithm)
            implements LoginState {
        @Override
        public LoginState handle(LoginOptions options, List<Pair> pairs, int granted,
                TextBuilder answers) throws LoginViolation, TextViolation {
            if (ours == null || chap.expectTarget().isEmpty()) {
                checkAllowed(pairs, EnumSet.noneOf(Key.class));
                return this;
            }
            checkAllowed(pairs, EnumSet.of(Key.CHAP_N, Key.CHAP_R));
            if (pairs.isEmpty() && granted == NO_STAGE) {
                // The target has not sent its proof yet: the next request asks for it again.
                return this;
            }
            Credential expected = chap.expectTarget().get();
            String user = required(pairs, Key.CHAP_N);
            boolean proven = ours.isAnsweredBy(required(pairs, Key.CHAP_R), expected.secret());
            // Our own response sent back proves nothing: the two secrets differ, see `first`.
            if (!(proven & user.equals(expected.user()))) {
                throw new LoginViolation("the target failed to authenticate itself; check its CHAP"
                        + " name and secret, or it is another target");
            }
            return new ExpectProof(chap, null, null);
        }

        @Override
        public int proposedStage() {
            return OPERATIONAL_NEGOTIATION;
        }
    }

    /** Our proposals were sent. */
    record ExpectOperational(Negotiation negotiation) implements LoginState {
        static ExpectOperational propose(LoginOptions options, TextBuilder text) {
            Negotiation negotiation = new Negotiation(Role.INITIATOR, options.offer(),
                    options.sessionType(), options.isLeading());
            negotiation.propose(text);
            return new ExpectOperational(negotiation);
        }

        @Override
        public LoginState handle(LoginOptions options, List<Pair> pairs, int granted,
                TextBuilder answers) throws LoginViolation, TextViolation {
            TextBuilder replies = new TextBuilder();
            negotiation.receive(pairs, replies);
            if (granted != NO_STAGE && !replies.isEmpty()) {
                // RFC 7143 §11.13.6.
                throw new LoginViolation("the response that ends the stage contains a proposal");
            }
            answers.append(replies);
            return this;
        }

        @Override
        public KeyStage stage() {
            return KeyStage.OPERATIONAL;
        }

        @Override
        public boolean hasProposedNewerKeys() {
            return negotiation.hasProposedNewerKeys();
        }

        @Override
        public int proposedStage() {
            return FULL_FEATURE_PHASE;
        }
    }

    /** Complete, failed, or not begun. */
    record Over() implements LoginState {
        @Override
        public LoginState handle(LoginOptions options, List<Pair> pairs, int granted,
                TextBuilder answers) {
            return this;
        }

        @Override
        public int proposedStage() {
            return NO_STAGE;
        }
    }

    private static String required(List<Pair> pairs, Key key) throws TextViolation {
        return pairs.stream().filter(pair -> pair.key() == key).map(Pair::value).findFirst()
                .orElseThrow(() -> new TextViolation(Kind.MISSING, key.wireName()));
    }

    private static void checkAllowed(List<Pair> pairs, Set<Key> allowed) throws TextViolation {
        for (Pair pair : pairs) {
            if (!allowed.contains(pair.key())) {
                throw new TextViolation(Kind.WRONG_STAGE, pair.name());
            }
        }
    }
}

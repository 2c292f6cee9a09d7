package org.lunarsan.iscsi.text;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * The operational negotiation of one login, in either role. RFC 7143 §6.2, §13.
 *
 * <p>The initiator calls {@link #propose} once. Each side passes the other's pairs to
 * {@link #receive}, which writes the answers. When the login is over, {@link #sessionParameters}
 * and {@link #connectionParameters} return the results. A key that is not agreed on keeps its
 * default.
 *
 * <p>Threads: for one thread.
 */
public final class Negotiation {
    private final Role role;
    private final Wanted wanted;
    private final SessionType sessionType;
    private final boolean leading;
    private final int[] agreed = new int[Key.values().length];
    private final SentKeys proposed = new SentKeys();
    private int peerSegmentBytesMax = ConnectionParameters.DEFAULT.sendDataSegmentBytesMax();
    private boolean ownSegmentDeclared;

    /**
     * Creates the negotiation of one login.
     *
     * @param role our side
     * @param offer our offer
     * @param sessionType of the session
     * @param leading unless it joins an established session
     */
    public Negotiation(Role role, Offer offer, SessionType sessionType, boolean leading) {
        this.role = role;
        this.wanted = new Wanted(role, offer, sessionType);
        this.sessionType = sessionType;
        this.leading = leading;
        Arrays.fill(agreed, Key.NONE);
    }

    /**
     * Writes all proposals and our MaxRecvDataSegmentLength. A key is proposed even if we want only
     * its default (RFC 7143 §6.2: defaults should not be relied upon), except those that old
     * targets do not support.
     *
     * @param text destination
     */
    public void propose(TextBuilder text) {
        for (Key key : Key.values()) {
            if (key.isNormalOnly() && sessionType == SessionType.DISCOVERY || isLate(key)) {
                continue;
            }
            String value = proposal(key);
            if (value == null) {
                continue;
            }
            proposed.mark(key);
            // These values decide by themselves; an answer is optional. RFC 7143 §6.2.2.
            if (key.rule() == Rule.AND && !wanted.flag(key)) {
                agreed[key.ordinal()] = 0;
            } else if (key.rule() == Rule.OR && wanted.flag(key)) {
                agreed[key.ordinal()] = 1;
            }
            text.key(key, value);
        }
        declare(text);
    }

    /**
     * True if our proposals include keys that RFC 3720 does not define.
     *
     * @return whether TaskReporting or iSCSIProtocolLevel is proposed
     */
    public boolean hasProposedNewerKeys() {
        return proposed.has(Key.TASK_REPORTING) || proposed.has(Key.PROTOCOL_LEVEL);
    }

    /**
     * Writes our MaxRecvDataSegmentLength, unless that was done.
     *
     * @param text destination
     */
    public void declare(TextBuilder text) {
        if (!ownSegmentDeclared) {
            ownSegmentDeclared = true;
            text.key(Key.MAX_RECV_DATA_SEGMENT_LENGTH, ownSegmentBytesMax());
        }
    }

    /**
     * Processes the keys of the peer.
     *
     * @param pairs the operational keys of one complete text
     * @param answers receives the answers
     * @throws TextViolation that ends the login
     */
    public void receive(List<Pair> pairs, TextBuilder answers) throws TextViolation {
        for (Pair pair : pairs) {
            if (pair.key() != Key.FIRST_BURST_LENGTH) {
                receiveOne(pair, answers);
            }
        }
        // Last, because its answer depends on MaxBurstLength in the same text.
        for (Pair pair : pairs) {
            if (pair.key() == Key.FIRST_BURST_LENGTH) {
                receiveOne(pair, answers);
            }
        }
    }

    /**
     * Answers a key that this implementation does not support: {@code NotUnderstood}, once. RFC
     * 7143 §6.2.
     *
     * @param pair the pair
     * @param answers receives the answer
     * @throws TextViolation for a constant that is only an answer
     */
    public static void receiveUnknown(Pair pair, TextBuilder answers) throws TextViolation {
        if (pair.isAnswerConstant()) {
            throw new TextViolation(Kind.RESERVED_VALUE, pair.name());
        }
        answers.pair(pair.name(), Pair.NOT_UNDERSTOOD);
    }

    private boolean isLate(Key key) {
        return key.use() == Use.LEADING_ONLY && !leading;
    }

    private void receiveOne(Pair pair, TextBuilder answers) throws TextViolation {
        Key key = pair.key();
        if (key == null) {
            receiveUnknown(pair, answers);
            return;
        }
        if (key.senders() == (role == Role.INITIATOR ? Senders.INITIATOR : Senders.TARGET)) {
            throw TextViolation.of(Kind.WRONG_SENDER, key);
        }
        if (proposed.has(key)) {
            takeAnswer(key, pair.value());
        } else if (pair.isAnswerConstant()) {
            throw TextViolation.of(Kind.RESERVED_VALUE, key);
        } else if (key.rule() == Rule.DECLARE) {
            takeDeclaration(key, pair.value());
        } else {
            takeProposal(key, pair.value(), answers);
        }
    }

    /**
     * Processes a declaration. X#NodeArchitecture has no effect (RFC 7143 §13.26.2); the login
     * handles the others itself.
     */
    private void takeDeclaration(Key key, String value) throws TextViolation {
        if (key != Key.MAX_RECV_DATA_SEGMENT_LENGTH) {
            return;
        }
        int bytes = key.admissible(value);
        if (bytes == Key.NONE) {
            throw TextViolation.of(Kind.BAD_VALUE, key);
        }
        peerSegmentBytesMax = bytes;
    }

    private void takeProposal(Key key, String value, TextBuilder answers) throws TextViolation {
        if (key.rule() == Rule.QUERY || key.rule() == Rule.AUTHENTICATION) {
            throw TextViolation.of(Kind.WRONG_STAGE, key);
        }
        int chosen = isLate(key) ? Key.NONE : choose(key, value);
        if (chosen == Key.NONE) {
            answers.key(key, refusal(key, value));
            return;
        }
        agreed[key.ordinal()] = chosen;
        answers.key(key, key.valueText(chosen));
    }

    /**
     * Returns the answer to a proposal from which nothing is chosen: {@code Reject}, except for the
     * markers, for which RFC 7143 §13.25 also allows {@code No}. A target answers {@code No}, since
     * an initiator that proposes markers supports that value, and continues without them.
     */
    private String refusal(Key key, String value) {
        boolean marker = key.rule() == Rule.OBSOLETE && key.kind() instanceof ValueKind.YesNo;
        return marker && role == Role.TARGET && flag(value) != Key.NONE
                ? Values.booleanText(false) : Pair.REJECT;
    }

    /**
     * Returns our choice; {@link Key#NONE} if the value is not valid, or contains nothing
     * acceptable.
     */
    private int choose(Key key, String value) {
        int number = key.admissible(value);
        int flag = flag(value);
        return switch (key.rule()) {
            case MINIMUM -> number == Key.NONE ? number : Math.min(number, number(key));
            case MAXIMUM -> number == Key.NONE ? number : Math.max(number, number(key));
            case AND -> flag == 1 && !wanted.flag(key) ? 0 : flag;
            case OR -> flag == 0 && wanted.flag(key) ? 1 : flag;
            case FIRST_SUPPORTED -> firstSupported(key, value);
            case DECLARE, QUERY, AUTHENTICATION, OBSOLETE -> Key.NONE;
        };
    }

    private int firstSupported(Key key, String value) {
        List<Integer> words = wanted.words(key);
        for (String word : value.split(",", -1)) {
            int number = key.wordNumber(word);
            if (number != Key.NONE && words.contains(number)) {
                return number;
            }
        }
        return Key.NONE;
    }

    private void takeAnswer(Key key, String value) throws TextViolation {
        boolean later = key == Key.TASK_REPORTING || key == Key.PROTOCOL_LEVEL;
        // NotUnderstood is for keys that old targets do not support; for the others §6.2 calls it
        // an error.
        if (value.equals(Pair.REJECT) || value.equals(Pair.IRRELEVANT)
                || value.equals(Pair.NOT_UNDERSTOOD) && later) {
            return;
        }
        int answer = switch (key.kind()) {
            case ValueKind.ListOf list -> key.wordNumber(value);
            case ValueKind.YesNo yesNo -> flag(value);
            default -> key.admissible(value);
        };
        if (answer == Key.NONE || !follows(key, answer)) {
            throw TextViolation.of(Kind.BAD_ANSWER, key);
        }
        agreed[key.ordinal()] = answer;
    }

    /** True if the answer is a possible result of our proposal. */
    private boolean follows(Key key, int answer) {
        return switch (key.rule()) {
            case MINIMUM -> answer <= number(key);
            case MAXIMUM -> answer >= number(key);
            case AND -> wanted.flag(key) || answer == 0;
            case OR -> !wanted.flag(key) || answer == 1;
            case FIRST_SUPPORTED -> wanted.words(key).contains(answer);
            default -> false;
        };
    }

    private String proposal(Key key) {
        return switch (key.rule()) {
            // Old targets do not support the key, and behave as its default.
            case MINIMUM, MAXIMUM -> key == Key.PROTOCOL_LEVEL && number(key) == 1 ? null
                    : Integer.toString(number(key));
            case AND, OR -> Values.booleanText(wanted.flag(key));
            case FIRST_SUPPORTED -> proposalList(key);
            case DECLARE, QUERY, AUTHENTICATION, OBSOLETE -> null;
        };
    }

    private String proposalList(Key key) {
        List<Integer> numbers = wanted.words(key);
        boolean defaultOnly = numbers.stream().allMatch(number -> number == 0);
        if (numbers.isEmpty() || key == Key.TASK_REPORTING && defaultOnly) {
            return null;
        }
        return numbers.stream().map(key::valueText).collect(Collectors.joining(","));
    }

    /**
     * Returns our value of a numeric key; FirstBurstLength is never above MaxBurstLength, §13.14.
     */
    private int number(Key key) {
        int number = wanted.number(key);
        return key == Key.FIRST_BURST_LENGTH ? Math.min(number, burstBytesMax()) : number;
    }

    /** Returns the agreed value, else the initiator's proposal, or for a target the default. */
    private int burstBytesMax() {
        Key key = Key.MAX_BURST_LENGTH;
        int burst = agreed[key.ordinal()];
        if (burst != Key.NONE) {
            return burst;
        }
        int number = wanted.number(key);
        return role == Role.TARGET ? Math.min(number, key.defaultOrZero()) : number;
    }

    private int ownSegmentBytesMax() {
        return wanted.number(Key.MAX_RECV_DATA_SEGMENT_LENGTH);
    }

    private static int flag(String value) {
        return Values.bool(value).map(yes -> yes ? 1 : 0).orElse(Key.NONE);
    }

    /** Returns the agreed value, or the default. */
    private int value(Key key) {
        int value = agreed[key.ordinal()];
        return value == Key.NONE ? key.defaultOrZero() : value;
    }

    private boolean isYes(Key key) {
        return value(key) == 1;
    }

    /**
     * The parameters of the session.
     *
     * @return the current result
     */
    public SessionParameters sessionParameters() {
        int burst = value(Key.MAX_BURST_LENGTH);
        int level = value(Key.ERROR_RECOVERY_LEVEL);
        boolean sequences = isYes(Key.DATA_SEQUENCE_IN_ORDER);
        // RFC 7143 §13.19: recovery of sequences in order covers the last R2T only.
        int r2ts = level > 0 && sequences ? 1 : value(Key.MAX_OUTSTANDING_R2T);
        return new SessionParameters(sessionType, value(Key.MAX_CONNECTIONS),
                isYes(Key.INITIAL_R2T), isYes(Key.IMMEDIATE_DATA), burst,
                // RFC 7143 §13.14, for any order of the two keys.
                Math.min(value(Key.FIRST_BURST_LENGTH), burst),
                value(Key.DEFAULT_TIME2_WAIT), value(Key.DEFAULT_TIME2_RETAIN), r2ts,
                isYes(Key.DATA_PDU_IN_ORDER), sequences, level,
                TaskReporting.values()[value(Key.TASK_REPORTING)], value(Key.PROTOCOL_LEVEL));
    }

    /**
     * The parameters of the connection.
     *
     * @return the current result
     * @throws TextViolation when a digest ended at a value that our offer does not include
     */
    public ConnectionParameters connectionParameters() throws TextViolation {
        for (Key key : List.of(Key.HEADER_DIGEST, Key.DATA_DIGEST)) {
            if (!wanted.words(key).contains(value(key))) {
                throw TextViolation.of(Kind.UNACCEPTABLE, key);
            }
        }
        int crc32c = Digest.CRC32C.ordinal();
        return new ConnectionParameters(
                new Digests(value(Key.HEADER_DIGEST) == crc32c, value(Key.DATA_DIGEST) == crc32c),
                peerSegmentBytesMax, ownSegmentDeclared ? ownSegmentBytesMax()
                        : ConnectionParameters.DEFAULT.receiveDataSegmentBytesMax());
    }

    /** The values of an offer by key. */
    private record Wanted(Role role, Offer offer, SessionType sessionType) {
        /** Returns the value of a numeric key, inside its valid range. */
        int number(Key key) {
            boolean discovery = sessionType == SessionType.DISCOVERY;
            int wanted = switch (key) {
                // RFC 7143 §13.21, §7.4.1.
                case MAX_CONNECTIONS -> discovery ? 1 : offer.maxConnections();
                case ERROR_RECOVERY_LEVEL -> discovery ? 0 : offer.errorRecoveryLevel();
                case MAX_RECV_DATA_SEGMENT_LENGTH -> offer.maxRecvDataSegmentBytes();
                case MAX_BURST_LENGTH -> offer.maxBurstBytes();
                case FIRST_BURST_LENGTH -> offer.firstBurstBytes();
                case DEFAULT_TIME2_WAIT -> offer.timeToWaitSeconds();
                case DEFAULT_TIME2_RETAIN -> offer.timeToRetainSeconds();
                case MAX_OUTSTANDING_R2T -> offer.maxOutstandingR2t();
                case PROTOCOL_LEVEL -> offer.protocolLevel();
                default -> 0;
            };
            return key.kind() instanceof ValueKind.Number(int min, int max)
                    ? Math.clamp(wanted, min, max) : wanted;
        }

        boolean flag(Key key) {
            return switch (key) {
                case INITIAL_R2T -> offer.initialR2t();
                case IMMEDIATE_DATA -> offer.immediateData();
                case DATA_PDU_IN_ORDER -> offer.dataPduInOrder();
                case DATA_SEQUENCE_IN_ORDER -> offer.dataSequenceInOrder();
                default -> false;
            };
        }

        /** Returns the accepted values of a list key, as indices into its list, best first. */
        List<Integer> words(Key key) {
            return switch (key) {
                case HEADER_DIGEST -> digests(offer.headerDigest());
                case DATA_DIGEST -> digests(offer.dataDigest());
                case TASK_REPORTING -> reporting();
                default -> List.of();
            };
        }

        private static List<Integer> digests(List<Digest> list) {
            return list.isEmpty() ? List.of(0) : list.stream().map(Digest::ordinal).toList();
        }

        /**
         * Returns the TaskReporting values. RFC 7143 §13.23: a side that proposes any must propose
         * RFC3720 and ResponseFence too. The former is the default in any case.
         */
        private List<Integer> reporting() {
            List<Integer> list = new ArrayList<>();
            offer.taskReporting().forEach(kind -> list.add(kind.ordinal()));
            if (role == Role.INITIATOR && list.stream().anyMatch(number -> number != 0)) {
                for (int must : new int[] {1, 0}) {
                    if (!list.contains(must)) {
                        list.add(must);
                    }
                }
            }
            return list;
        }
    }
}

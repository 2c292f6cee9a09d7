package org.lunarsan.iscsi.text;

import java.util.HashMap;
import java.util.Map;
import java.util.OptionalInt;
import java.util.OptionalLong;

/**
 * A key that this implementation supports: every key of RFC 7143 §12 and §13, and
 * iSCSIProtocolLevel of RFC 7144 §7.1.1, in one table used by parsing and negotiation.
 *
 * <p>Threads: immutable.
 */
public enum Key {
    /** RFC 7143 §12.1. */
    AUTH_METHOD("AuthMethod", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.FIRST_SUPPORTED,
            ValueKind.list("None", "CHAP"), Key.NONE, false, "RFC 7143 §12.1"),

    /** RFC 7143 §12.1.3. */
    CHAP_A("CHAP_A", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.AUTHENTICATION,
            ValueKind.list("5", "6", "7", "8"), Key.NONE, false, "RFC 7143 §12.1.3"),

    /** RFC 7143 §12.1.3. */
    CHAP_I("CHAP_I", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.AUTHENTICATION,
            ValueKind.number(0, 255), Key.NONE, false, "RFC 7143 §12.1.3"),

    /** RFC 7143 §12.1.3. */
    CHAP_C("CHAP_C", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.AUTHENTICATION,
            Kinds.CHAP_BINARY, Key.NONE, false, "RFC 7143 §12.1.3"),

    /** RFC 7143 §12.1.3. */
    CHAP_N("CHAP_N", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.AUTHENTICATION,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §12.1.3"),

    /** RFC 7143 §12.1.3. */
    CHAP_R("CHAP_R", Use.INITIALIZE_ONLY, KeyStage.SECURITY,
            Senders.BOTH, Scope.CONNECTION, Rule.AUTHENTICATION,
            Kinds.CHAP_BINARY, Key.NONE, false, "RFC 7143 §12.1.3"),

    /** RFC 7143 §13.1. */
    HEADER_DIGEST("HeaderDigest", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.FIRST_SUPPORTED,
            Kinds.DIGESTS, 0, false, "RFC 7143 §13.1"),

    /** RFC 7143 §13.1. */
    DATA_DIGEST("DataDigest", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.FIRST_SUPPORTED,
            Kinds.DIGESTS, 0, false, "RFC 7143 §13.1"),

    /** RFC 7143 §13.2. */
    MAX_CONNECTIONS("MaxConnections", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            Kinds.COUNT, 1, true, "RFC 7143 §13.2"),

    /** RFC 7143 §13.3. */
    SEND_TARGETS("SendTargets", Use.FULL_FEATURE_ONLY, KeyStage.OPERATIONAL,
            Senders.INITIATOR, Scope.SESSION, Rule.QUERY,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.3"),

    /** RFC 7143 §13.4. */
    TARGET_NAME("TargetName", Use.INITIALIZE_ONLY, KeyStage.ANY,
            Senders.BOTH, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Name(), Key.NONE, false, "RFC 7143 §13.4"),

    /** RFC 7143 §13.5. */
    INITIATOR_NAME("InitiatorName", Use.INITIALIZE_ONLY, KeyStage.ANY,
            Senders.INITIATOR, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Name(), Key.NONE, false, "RFC 7143 §13.5"),

    /** RFC 7143 §13.6. */
    TARGET_ALIAS("TargetAlias", Use.ALL, KeyStage.ANY,
            Senders.TARGET, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.6"),

    /** RFC 7143 §13.7. */
    INITIATOR_ALIAS("InitiatorAlias", Use.ALL, KeyStage.ANY,
            Senders.INITIATOR, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.7"),

    /** RFC 7143 §13.8. */
    TARGET_ADDRESS("TargetAddress", Use.ALL, KeyStage.ANY,
            Senders.TARGET, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.8"),

    /** RFC 7143 §13.9. */
    TARGET_PORTAL_GROUP_TAG("TargetPortalGroupTag", Use.INITIALIZE_ONLY, KeyStage.ANY,
            Senders.TARGET, Scope.SESSION, Rule.DECLARE,
            ValueKind.number(0, 65_535), Key.NONE, false, "RFC 7143 §13.9"),

    /** RFC 7143 §13.10. */
    INITIAL_R2T("InitialR2T", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.OR,
            new ValueKind.YesNo(), 1, true, "RFC 7143 §13.10"),

    /** RFC 7143 §13.11. */
    IMMEDIATE_DATA("ImmediateData", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.AND,
            new ValueKind.YesNo(), 1, true, "RFC 7143 §13.11"),

    /** RFC 7143 §13.12. */
    MAX_RECV_DATA_SEGMENT_LENGTH("MaxRecvDataSegmentLength", Use.ALL, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.DECLARE,
            Kinds.BURST, 8192, false, "RFC 7143 §13.12"),

    /** RFC 7143 §13.13. */
    MAX_BURST_LENGTH("MaxBurstLength", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            Kinds.BURST, 262_144, true, "RFC 7143 §13.13"),

    /** RFC 7143 §13.14. */
    FIRST_BURST_LENGTH("FirstBurstLength", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            Kinds.BURST, 65_536, true, "RFC 7143 §13.14"),

    /** RFC 7143 §13.15. */
    DEFAULT_TIME2_WAIT("DefaultTime2Wait", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MAXIMUM,
            Kinds.SECONDS, 2, false, "RFC 7143 §13.15"),

    /** RFC 7143 §13.16. */
    DEFAULT_TIME2_RETAIN("DefaultTime2Retain", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            Kinds.SECONDS, 20, false, "RFC 7143 §13.16"),

    /** RFC 7143 §13.17. */
    MAX_OUTSTANDING_R2T("MaxOutstandingR2T", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            Kinds.COUNT, 1, true, "RFC 7143 §13.17"),

    /** RFC 7143 §13.18. */
    DATA_PDU_IN_ORDER("DataPDUInOrder", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.OR,
            new ValueKind.YesNo(), 1, true, "RFC 7143 §13.18"),

    /** RFC 7143 §13.19. */
    DATA_SEQUENCE_IN_ORDER("DataSequenceInOrder", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.OR,
            new ValueKind.YesNo(), 1, true, "RFC 7143 §13.19"),

    /** RFC 7143 §13.20. */
    ERROR_RECOVERY_LEVEL("ErrorRecoveryLevel", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            ValueKind.number(0, 2), 0, false, "RFC 7143 §13.20"),

    /** RFC 7143 §13.21. */
    SESSION_TYPE("SessionType", Use.LEADING_ONLY, KeyStage.ANY,
            Senders.INITIATOR, Scope.SESSION, Rule.DECLARE,
            ValueKind.word("Normal", "Discovery"), 0, false, "RFC 7143 §13.21"),

    /** RFC 7143 §13.23. */
    TASK_REPORTING("TaskReporting", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.FIRST_SUPPORTED,
            ValueKind.list("RFC3720", "ResponseFence", "FastAbort"), 0, true, "RFC 7143 §13.23"),

    /** RFC 7144 §7.1.1. */
    PROTOCOL_LEVEL("iSCSIProtocolLevel", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.MINIMUM,
            ValueKind.number(0, 31), 1, true, "RFC 7144 §7.1.1"),

    /** RFC 7143 §13.25. */
    IF_MARKER("IFMarker", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.OBSOLETE,
            new ValueKind.YesNo(), 0, false, "RFC 7143 §13.25"),

    /** RFC 7143 §13.25. */
    OF_MARKER("OFMarker", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.OBSOLETE,
            new ValueKind.YesNo(), 0, false, "RFC 7143 §13.25"),

    /** RFC 7143 §13.25. */
    IF_MARK_INT("IFMarkInt", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.OBSOLETE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.25"),

    /** RFC 7143 §13.25. */
    OF_MARK_INT("OFMarkInt", Use.INITIALIZE_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.CONNECTION, Rule.OBSOLETE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.25"),

    /** RFC 7143 §13.26. */
    NODE_ARCHITECTURE("X#NodeArchitecture", Use.LEADING_ONLY, KeyStage.OPERATIONAL,
            Senders.BOTH, Scope.SESSION, Rule.DECLARE,
            new ValueKind.Text(), Key.NONE, false, "RFC 7143 §13.26");

    /** Longest iSCSI name in bytes. RFC 7143 §4.2.7.1. */
    public static final int NAME_BYTES_MAX = 223;

    /** Longest simple value in bytes unless its key says otherwise. RFC 7143 §6.1. */
    public static final int VALUE_BYTES_MAX = 255;

    /** Longest CHAP challenge or response in bytes, decoded. RFC 7143 §12.1.3. */
    public static final int CHAP_BYTES_MAX = 1024;

    /** Means "no default", and "nothing agreed". */
    static final int NONE = -1;

    private static final Map<String, Key> NAMED = new HashMap<>();

    static {
        for (Key key : values()) {
            NAMED.put(key.wireName, key);
        }
    }

    private final String wireName;
    private final Use use;
    private final KeyStage stage;
    private final Senders senders;
    private final Scope scope;
    private final Rule rule;
    private final ValueKind kind;
    private final int defaultValue;
    private final boolean normalOnly;
    private final String source;

    Key(String wireName, Use use, KeyStage stage, Senders senders, Scope scope, Rule rule,
            ValueKind kind, int defaultValue, boolean normalOnly, String source) {
        this.wireName = wireName;
        this.use = use;
        this.stage = stage;
        this.senders = senders;
        this.scope = scope;
        this.rule = rule;
        this.kind = kind;
        this.defaultValue = defaultValue;
        this.normalOnly = normalOnly;
        this.source = source;
    }

    /**
     * Returns the key with a name; names are case sensitive (RFC 7143 §6.1).
     *
     * @param name the name on the wire
     * @return the key, or {@code null} for an unknown one
     */
    public static Key named(String name) {
        return NAMED.get(name);
    }

    /**
     * The name on the wire.
     *
     * @return the name
     */
    public String wireName() {
        return wireName;
    }

    /**
     * The phases in which it may be sent.
     *
     * @return the "Use" of RFC 7143 §13
     */
    public Use use() {
        return use;
    }

    /**
     * The stage of the login to which it belongs.
     *
     * @return the stage
     */
    public KeyStage stage() {
        return stage;
    }

    /**
     * The sides that may send it.
     *
     * @return the senders
     */
    public Senders senders() {
        return senders;
    }

    /**
     * The scope of its value.
     *
     * @return the scope
     */
    public Scope scope() {
        return scope;
    }

    /**
     * The rule that determines its value.
     *
     * @return the result function
     */
    public Rule rule() {
        return rule;
    }

    /**
     * The kind of its value.
     *
     * @return the kind
     */
    public ValueKind kind() {
        return kind;
    }

    /**
     * The default, used if nothing is negotiated.
     *
     * @return a number, 0 or 1 for No or Yes, or an index into the list; empty for none
     */
    public OptionalInt defaultValue() {
        return defaultValue == NONE ? OptionalInt.empty() : OptionalInt.of(defaultValue);
    }

    /**
     * True if it is irrelevant when SessionType=Discovery.
     *
     * @return whether it is
     */
    public boolean isNormalOnly() {
        return normalOnly;
    }

    /**
     * The specification of the key.
     *
     * @return RFC and section
     */
    public String source() {
        return source;
    }

    /**
     * Formats a value of this key for the wire.
     *
     * @param value a number, 0 or 1 for No or Yes, or an index into the list
     * @return the text
     */
    public String valueText(int value) {
        return switch (kind) {
            case ValueKind.YesNo() -> Values.booleanText(value == 1);
            case ValueKind.ListOf(var words) -> words.get(value);
            case ValueKind.Word(var words) -> words.get(value);
            default -> Integer.toString(value);
        };
    }

    /** The longest value in bytes on the wire; lists are bounded by the text. */
    int valueBytesMax() {
        return switch (kind) {
            case ValueKind.Name() -> NAME_BYTES_MAX;
            case ValueKind.ListOf(var words) -> Integer.MAX_VALUE;
            case ValueKind.Binary(int bytesMax) -> 2 + 2 * bytesMax;
            default -> VALUE_BYTES_MAX;
        };
    }

    /** The default, or 0. */
    int defaultOrZero() {
        return Math.max(defaultValue, 0);
    }

    /** Parses a number inside the key's range; {@link #NONE} for everything else. */
    int admissible(String text) {
        OptionalLong number = Values.number(text);
        boolean fits = kind instanceof ValueKind.Number(int min, int max) && number.isPresent()
                && number.getAsLong() >= min && number.getAsLong() <= max;
        return fits ? (int) number.getAsLong() : NONE;
    }

    /** Returns the index of a word in the key's list; {@link #NONE} for other words. */
    int wordNumber(String word) {
        return kind instanceof ValueKind.ListOf(var words) ? words.indexOf(word) : NONE;
    }

    /** Kinds that several keys share. */
    private static final class Kinds {
        static final ValueKind DIGESTS = ValueKind.list("None", "CRC32C");
        static final ValueKind BURST = ValueKind.number(512, 0xff_ffff);
        static final ValueKind COUNT = ValueKind.number(1, 65_535);
        static final ValueKind SECONDS = ValueKind.number(0, 3600);
        static final ValueKind CHAP_BINARY = new ValueKind.Binary(CHAP_BYTES_MAX);

        private Kinds() {
        }
    }
}

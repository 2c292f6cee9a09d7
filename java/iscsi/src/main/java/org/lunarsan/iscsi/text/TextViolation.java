package org.lunarsan.iscsi.text;

/**
 * An error in a peer's text. RFC 7143 §6. It ends a login, or in full feature phase the exchange.
 *
 * <p>It has no stack trace, because it describes an error of the peer, not of our code.
 *
 * <p>Threads: immutable.
 */
public final class TextViolation extends Exception {
    private static final long serialVersionUID = 1;

    /** The kind of fault. */
    private final Kind kind;

    /** Kinds of error. */
    public enum Kind {
        /** Text does not end in a zero byte. */
        UNTERMINATED("text does not end in a zero byte"),
        /** The text is not UTF-8. */
        NOT_UTF8("text is not UTF-8"),
        /** A key without an equals sign. */
        NO_VALUE("a key without an equals sign"),
        /** A key name that RFC 7143 §6.1 does not allow. */
        KEY_NAME("a key name that RFC 7143 §6.1 does not allow"),
        /** More text than the limit. */
        TEXT_TOO_LONG("more than %s bytes of text"),
        /** More pairs than the limit. */
        TOO_MANY_PAIRS("more than %s pairs"),
        /** A value is too long. */
        VALUE_TOO_LONG("the value of %s is too long"),
        /** A key was sent twice. */
        REPEATED("%s was sent twice"),
        /** A key of the other side. */
        WRONG_SENDER("%s is not for this side to send"),
        /** A key of another stage or phase. */
        WRONG_STAGE("%s does not belong to this stage or phase"),
        /** A value that the key's definition does not allow. */
        BAD_VALUE("%s has a value that its definition does not allow"),
        /** An answer that was not up for choice. */
        BAD_ANSWER("%s was answered with a value that was not offered"),
        /** A constant that is only an answer. */
        RESERVED_VALUE("%s was proposed with a constant that is only an answer"),
        /** The result is not acceptable here. */
        UNACCEPTABLE("%s ended at a value that is not acceptable here"),
        /** A key is missing. */
        MISSING("%s is missing"),
        /** The peer continues while text is being sent to it. */
        OUT_OF_TURN("the peer continues while text is being sent to it");

        private final String message;

        Kind(String message) {
            this.message = message;
        }
    }

    /**
     * Creates an error that concerns no key.
     *
     * @param kind the kind
     */
    public TextViolation(Kind kind) {
        this(kind, "");
    }

    /**
     * Creates an error of a key, or of a limit.
     *
     * @param kind the kind
     * @param subject the key's name, or the limit
     */
    public TextViolation(Kind kind, Object subject) {
        super(kind.message.formatted(subject), null, false, false);
        this.kind = kind;
    }

    /**
     * The kind of error.
     *
     * @return the kind
     */
    public Kind kind() {
        return kind;
    }

    static TextViolation of(Kind kind, Key key) {
        return new TextViolation(kind, key.wireName());
    }
}

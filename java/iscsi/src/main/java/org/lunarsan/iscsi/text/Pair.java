package org.lunarsan.iscsi.text;

/**
 * One {@code key=value} pair as received.
 *
 * <p>Threads: immutable.
 *
 * @param key the key, or {@code null} if it is not known
 * @param name its name
 * @param value the text after the first {@code =}
 */
public record Pair(Key key, String name, String value) {
    /** An answer, never a proposal. RFC 7143 §6.2. */
    public static final String REJECT = "Reject";

    /** An answer, never a proposal. RFC 7143 §6.2. */
    public static final String IRRELEVANT = "Irrelevant";

    /** An answer, never a proposal. RFC 7143 §6.2. */
    public static final String NOT_UNDERSTOOD = "NotUnderstood";

    /**
     * True if the value is one of the constants that are only answers.
     *
     * @return whether it is
     */
    public boolean isAnswerConstant() {
        return value.equals(REJECT) || value.equals(IRRELEVANT) || value.equals(NOT_UNDERSTOOD);
    }
}

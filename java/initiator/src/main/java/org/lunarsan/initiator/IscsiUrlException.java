package org.lunarsan.initiator;

/**
 * Thrown for a text that is not a valid {@code iscsi://} URL. The message says what is wrong and
 * gives advice; it never repeats a possible secret.
 *
 * <p>Threads: immutable.
 */
public final class IscsiUrlException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    /** The error without the advice. */
    private final String what;
    /** The advice. */
    private final String hint;

    IscsiUrlException(String what, String hint) {
        super(what + "; " + hint);
        this.what = what;
        this.hint = hint;
    }

    /**
     * The error.
     *
     * @return the error without the advice
     */
    public String what() {
        return what;
    }

    /**
     * The advice.
     *
     * @return an advice
     */
    public String hint() {
        return hint;
    }
}

package org.lunarsan.initiator;

/**
 * A text that is no {@code iscsi://} URL: what is wrong with it, and what is meant. It never
 * repeats what may be a secret.
 *
 * <p>Threads: immutable.
 */
public final class IscsiUrlException extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    /** What is wrong, alone. */
    private final String what;
    /** What to do. */
    private final String hint;

    IscsiUrlException(String what, String hint) {
        super(what + "; " + hint);
        this.what = what;
        this.hint = hint;
    }

    /**
     * What is wrong.
     *
     * @return without the advice
     */
    public String what() {
        return what;
    }

    /**
     * What to do.
     *
     * @return an advice
     */
    public String hint() {
        return hint;
    }
}

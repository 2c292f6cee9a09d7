package org.lunarsan.iscsi.connection;

/**
 * Carries a {@link Violation} to the code that shuts the connection. It has no stack trace, because
 * it describes an error of the peer.
 *
 * <p>Threads: immutable.
 */
final class Violated extends Exception {
    private static final long serialVersionUID = 1;

    /** The violation. */
    private final transient Violation violation;

    Violated(Violation violation) {
        super(violation.describe(), null, false, false);
        this.violation = violation;
    }

    static Violated malformed(int opcode, String what) {
        return new Violated(new Violation.Malformed(opcode, what));
    }

    Violation violation() {
        return violation;
    }
}

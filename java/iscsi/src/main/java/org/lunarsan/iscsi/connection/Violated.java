package org.lunarsan.iscsi.connection;

/**
 * Carries a {@link Violation} to where the connection is shut. It bears no stack trace: it says
 * what a peer did.
 *
 * <p>Threads: immutable.
 */
final class Violated extends Exception {
    private static final long serialVersionUID = 1;

    /** What. */
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

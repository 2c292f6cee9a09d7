package org.lunarsan.iscsi.framing;

/**
 * Additional Header Segments that contradict themselves; a format error, RFC 7143 §7.7. It bears no
 * stack trace: it says what a peer did.
 *
 * <p>Threads: immutable.
 */
public final class AhsViolation extends Exception {
    private static final long serialVersionUID = 1;

    AhsViolation(String what) {
        super(what, null, false, false);
    }
}

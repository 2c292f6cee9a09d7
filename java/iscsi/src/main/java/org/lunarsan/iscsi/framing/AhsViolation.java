package org.lunarsan.iscsi.framing;

/**
 * Thrown for inconsistent Additional Header Segments; a format error, RFC 7143 §7.7. It has no
 * stack trace, because it describes an error of the peer.
 *
 * <p>Threads: immutable.
 */
public final class AhsViolation extends Exception {
    private static final long serialVersionUID = 1;

    AhsViolation(String what) {
        super(what, null, false, false);
    }
}

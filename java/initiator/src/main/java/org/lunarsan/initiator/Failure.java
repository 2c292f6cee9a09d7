package org.lunarsan.initiator;

import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Sense;

/**
 * A failure below the device: kind and message, without the blocks and the device concerned. It has
 * no stack trace; {@link IscsiException} has one.
 *
 * <p>Threads: immutable.
 */
final class Failure extends Exception {
    private static final long serialVersionUID = 1L;

    /** There is no SCSI status. */
    static final int NO_STATUS = -1;

    private final Kind kind;
    private final int status;
    private final transient Sense sense;
    private final String hint;

    private Failure(Kind kind, String what, String hint, int status, Sense sense, Throwable why) {
        super(what, why, false, false);
        this.kind = kind;
        this.status = status;
        this.sense = sense;
        this.hint = hint;
    }

    static Failure of(Kind kind, String what) {
        return new Failure(kind, what, null, NO_STATUS, null, null);
    }

    static Failure of(Kind kind, String what, Throwable why) {
        return new Failure(kind, what, null, NO_STATUS, null, why);
    }

    /** A failure with any SCSI status but GOOD; {@code sense} may be null. */
    static Failure status(Kind kind, String what, int status, Sense sense) {
        return new Failure(kind, what, null, status, sense, null);
    }

    /** The calling thread was interrupted; its interrupt status stays set. */
    static Failure interrupted() {
        return of(Kind.INTERRUPTED, "the calling thread was interrupted");
    }

    /** Returns the same failure with advice. */
    Failure hint(String advice) {
        return new Failure(kind, getMessage(), advice, status, sense, getCause());
    }

    /** Returns the same failure with another kind. */
    Failure as(Kind other) {
        return new Failure(other, getMessage(), hint, status, sense, getCause());
    }

    /** Returns the same failure with another message. */
    Failure withMessage(String what) {
        return new Failure(kind, what, hint, status, sense, getCause());
    }

    /** Returns the same failure for a command that had no effect. */
    Failure notSent() {
        return as(Kind.NOT_SENT);
    }

    Kind kind() {
        return kind;
    }

    int status() {
        return status;
    }

    /** The sense data, or null. */
    Sense sense() {
        return sense;
    }

    /** The advice, or null. */
    String hint() {
        return hint;
    }

    String describe() {
        return hint == null ? getMessage() : getMessage() + " (" + hint + ")";
    }

    /**
     * True when the session is gone or the command did not reach the target whole. The command may
     * succeed if it is sent again, perhaps in another session.
     */
    boolean isLost() {
        return kind == Kind.SESSION_LOST || kind == Kind.NOT_SENT;
    }
}

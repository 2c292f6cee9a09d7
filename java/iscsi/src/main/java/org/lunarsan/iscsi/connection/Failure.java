package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.RejectReason;

/**
 * Reason why a request has no answer of the target. The outcome of a sent command is then unknown,
 * except for {@link Kind#REFUSED}.
 *
 * <p>Threads: immutable.
 *
 * @param kind the kind
 * @param what the reason, for messages
 */
public record Failure(Kind kind, String what) {
    /** The kinds. */
    public enum Kind {
        /**
         * Never sent: logging out, too many pending requests, not valid, or the connection ended
         * first.
         */
        REFUSED,
        /** A task management function ended the command. */
        ABORTED,
        /** The target rejected it. */
        REJECTED,
        /** A logout ended the command. */
        LOGGED_OUT,
        /** The connection ended first. */
        LOST
    }

    static final Failure ABORTED =
            new Failure(Kind.ABORTED, "ended by a task management function");
    static final Failure LOGGED_OUT = new Failure(Kind.LOGGED_OUT, "ended by a logout");
    static final Failure LOST = new Failure(Kind.LOST, "the connection ended first");
    static final Failure UNSENT =
            refused("the connection ended before the request was sent");

    static Failure refused(String why) {
        return new Failure(Kind.REFUSED, why);
    }

    static Failure rejected(int reason) {
        return new Failure(Kind.REJECTED,
                "the target rejected the request: " + RejectReason.name(reason));
    }
}

package org.lunarsan.iscsi.connection;

/**
 * Reason for the end of a connection.
 *
 * <p>Threads: immutable.
 */
public sealed interface CloseReason {
    /** The connection was logged out. */
    record LoggedOut() implements CloseReason {
    }

    /**
     * The target broke the protocol.
     *
     * @param violation the violation
     */
    record Violated(Violation violation) implements CloseReason {
    }

    /**
     * The target did not answer in time.
     *
     * @param what the unanswered request
     */
    record TimedOut(String what) implements CloseReason {
    }

    /** The target closed its side, or the socket failed. */
    record PeerClosed() implements CloseReason {
    }

    /** The session dropped the connection. */
    record Dropped() implements CloseReason {
    }
}

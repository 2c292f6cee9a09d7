package org.lunarsan.iscsi.connection;

/**
 * Why a connection ends.
 *
 * <p>Threads: immutable.
 */
public sealed interface CloseReason {
    /** Logged out. */
    record LoggedOut() implements CloseReason {
    }

    /**
     * The target broke the protocol.
     *
     * @param violation how
     */
    record Violated(Violation violation) implements CloseReason {
    }

    /**
     * The target did not answer in time.
     *
     * @param what to what
     */
    record TimedOut(String what) implements CloseReason {
    }

    /** The target closed its side, or the socket failed. */
    record PeerClosed() implements CloseReason {
    }

    /** The session asked for it. */
    record Dropped() implements CloseReason {
    }
}

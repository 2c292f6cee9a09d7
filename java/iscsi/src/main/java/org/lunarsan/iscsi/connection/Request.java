package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * A request to the target. The caller creates it, passes it to {@link InitiatorConnection#submit}
 * and gets it back from {@link InitiatorConnection#pollCompleted}; then it can be reused. It is the
 * slot of its own task, so that a reused request produces no garbage.
 *
 * <p>Threads: the caller's before {@code submit} and after completion; the connection's, behind its
 * lock, in between.
 */
public abstract sealed class Request permits Command, Logout, Management, Ping, TextExchange {
    /** The caller owns the request. */
    static final int IDLE = 0;
    /** The request waits for its numbers. */
    static final int WAITING = 1;
    /** The request is encoded with its numbers. */
    static final int SENT = 2;

    int state = IDLE;
    int tag = BasicHeader.TAG_RESERVED;
    int slot;
    int cmdSn;
    boolean immediate;
    /** Set for a request of the machine itself, for which no caller waits. */
    boolean internal;
    /** Number of holds on its buffers: the writer for each piece, the reader for one. */
    int holders;
    /** Set when the request is over, although its buffers are still held. */
    boolean over;
    /** Next request in a queue. */
    Request next;
    Failure failure;

    Request() {
    }

    /** Forgets the last answer. */
    void begin() {
        state = WAITING;
        over = false;
        holders = 0;
        failure = null;
    }

    /**
     * Reason why there is no answer of the target.
     *
     * @return the reason; {@code null} if the target answered
     */
    public final Failure failure() {
        return failure;
    }
}

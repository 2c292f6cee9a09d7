package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * Something to be asked of the target. Made by the caller, handed to
 * {@link InitiatorConnection#submit}, and given back by {@link InitiatorConnection#pollCompleted};
 * then it may be used again. It is the slot of its own task: nothing else is kept for it, so that
 * one that is used again and again costs no garbage.
 *
 * <p>Threads: the caller's before {@code submit} and after it came back; the connection's, behind
 * its lock, in between.
 */
public abstract sealed class Request permits Command, Logout, Management, Ping, TextQuestion {
    /** The caller has it. */
    static final int IDLE = 0;
    /** Waits for its numbers. */
    static final int WAITING = 1;
    /** Encoded with its numbers. */
    static final int SENT = 2;

    int state = IDLE;
    int tag = BasicHeader.TAG_RESERVED;
    int slot;
    int cmdSn;
    boolean immediate;
    /** Made by the machine itself: nobody waits for it. */
    boolean internal;
    /** How many hold on to its buffers: the writer for each piece, the reader for one. */
    int holders;
    /** It is over, but somebody still holds on to its buffers. */
    boolean over;
    /** In a queue. */
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
     * Why there is no answer of the target.
     *
     * @return why; {@code null} if the target answered
     */
    public final Failure failure() {
        return failure;
    }
}

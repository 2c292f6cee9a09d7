package org.lunarsan.initiator;

import java.nio.ByteBuffer;

/**
 * The buffer of one command, lent by a caller until its future is complete. If the caller takes the
 * buffer back earlier, the command continues: a write with a copy of the data, a read with incoming
 * data discarded.
 *
 * <p>Threads: any, behind its lock, within which the locks of a connection's sender or reader are
 * taken.
 */
final class LentBuffer {
    private final boolean write;
    private final int bytes;
    /** A separate view, unaffected by changes of the caller's position and limit. */
    private ByteBuffer data;
    private int at;
    /** The task that uses the buffer. */
    private Task user;
    private boolean isBack;
    /** Number of an abandoned write in {@link UncertainWrites}, for which later writes wait. */
    private long uncertainWriteNumber = UncertainWrites.NEW;

    /** Lends the remaining bytes of {@code buffer}. */
    LentBuffer(boolean write, ByteBuffer buffer) {
        this.write = write;
        data = buffer.duplicate();
        at = data.position();
        bytes = data.remaining();
    }

    int bytes() {
        return bytes;
    }

    /** Gives the buffer to a task, until {@link #release}. */
    synchronized void lend(Task task) {
        user = task;
        if (write) {
            task.dataOut(data, at, bytes);
        } else {
            task.into(data, at, bytes, data.duplicate());
        }
    }

    /** Ends the use by a task that has completed; call it before the task is reused. */
    synchronized void release() {
        user = null;
    }

    /**
     * See {@link UncertainWrites#replay}; {@link UncertainWrites#NEW} until the caller gives the
     * write up.
     */
    synchronized long uncertainWriteNumber() {
        return uncertainWriteNumber;
    }

    /**
     * Takes the caller's buffer back: nothing uses it after this call returns. {@code number} is
     * that of a write in {@link UncertainWrites}.
     */
    synchronized void takeBack(long number) {
        if (isBack) {
            return;
        }
        isBack = true;
        uncertainWriteNumber = number;
        ByteBuffer before = data;
        int shift = at;
        // A read may be sent again and then needs a buffer.
        data = ByteBuffer.allocate(bytes);
        at = 0;
        if (write) {
            data.put(0, before, shift, bytes);
        }
        if (user != null && write) {
            user.home.moveDataOut(user, data, shift);
        } else if (user != null) {
            user.home.discardDataIn(user);
        }
    }
}

package org.lunarsan.initiator;

import java.nio.ByteBuffer;

/**
 * The buffer of one command, lent by a caller until its future is complete. Taken back before that,
 * the command goes on: a write with a copy of the data, a read with what comes thrown away.
 *
 * <p>Threads: any, behind its lock, in which those of a connection's sender or reader are taken.
 */
final class LentBuffer {
    private final boolean write;
    private final int bytes;
    /** A view of its own: what a caller does to position and limit meanwhile does not matter. */
    private ByteBuffer data;
    private int at;
    /** The task that uses it. */
    private Task user;
    private boolean isBack;
    /** The number of a write that was given up among those that later ones wait for. */
    private long givenUp = Doubts.NEW;

    /** What remains of {@code buffer}. */
    LentBuffer(boolean write, ByteBuffer buffer) {
        this.write = write;
        data = buffer.duplicate();
        at = data.position();
        bytes = data.remaining();
    }

    int bytes() {
        return bytes;
    }

    /** Has a task use it, until {@link #release}. */
    synchronized void lend(Task task) {
        user = task;
        if (write) {
            task.dataOut(data, at, bytes);
        } else {
            task.into(data, at, bytes, data.duplicate());
        }
    }

    /** The task came back; to be called before anybody else may have it. */
    synchronized void release() {
        user = null;
    }

    /** See {@link Doubts#replay}; {@link Doubts#NEW} before it is given up. */
    synchronized long givenUp() {
        return givenUp;
    }

    /** From when this returns on, nothing uses the caller's buffer. {@code number}: of a write. */
    synchronized void takeBack(long number) {
        if (isBack) {
            return;
        }
        isBack = true;
        givenUp = number;
        ByteBuffer before = data;
        int shift = at;
        // A read may be sent again, and wants a place then.
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

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Semaphore;

/**
 * Memory for pieces that are gathered from many places, or scattered to them: bounded, and used
 * again. For any thread; who takes one while all are in use waits.
 */
final class PieceBuffers {
    /** Of one piece. */
    static final int PIECE_BYTES = 1 << 20;
    /** At the same time, and kept. */
    private static final int PIECES_MAX = 16;

    private final Semaphore room = new Semaphore(PIECES_MAX);
    private final ArrayBlockingQueue<ByteBuffer> kept = new ArrayBlockingQueue<>(PIECES_MAX);

    /** A buffer of so many bytes; to be given back. */
    ByteBuffer take(int bytes) {
        room.acquireUninterruptibly();
        ByteBuffer buffer = kept.poll();
        try {
            if (buffer == null) {
                // Outside of the heap: sockets and files would copy it there.
                buffer = ByteBuffer.allocateDirect(PIECE_BYTES);
            }
        } finally {
            if (buffer == null) {
                room.release();
            }
        }
        return buffer.clear().limit(bytes);
    }

    void give(ByteBuffer buffer) {
        kept.add(buffer);
        room.release();
    }
}

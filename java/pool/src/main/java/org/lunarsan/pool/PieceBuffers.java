package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Semaphore;

/**
 * Bounded pool of reusable buffers for pieces that are gathered from, or scattered to, buffers.
 * Thread-safe; a thread that takes one while all are in use waits.
 */
final class PieceBuffers {
    /** Size of one piece. */
    static final int PIECE_BYTES = 1 << 20;
    /** Limit of buffers in use at the same time, and of those kept. */
    private static final int PIECES_MAX = 16;

    private final Semaphore permits = new Semaphore(PIECES_MAX);
    private final ArrayBlockingQueue<ByteBuffer> kept = new ArrayBlockingQueue<>(PIECES_MAX);

    /** Takes a buffer of this length; has to be {@linkplain #release released}. */
    ByteBuffer take(int bytes) {
        permits.acquireUninterruptibly();
        ByteBuffer buffer = kept.poll();
        try {
            if (buffer == null) {
                // Direct memory: sockets and files would copy heap memory to it.
                buffer = ByteBuffer.allocateDirect(PIECE_BYTES);
            }
        } finally {
            if (buffer == null) {
                permits.release();
            }
        }
        return buffer.clear().limit(bytes);
    }

    void release(ByteBuffer buffer) {
        kept.add(buffer);
        permits.release();
    }
}

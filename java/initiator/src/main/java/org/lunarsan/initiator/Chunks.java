package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.ArrayDeque;

/**
 * Pool of large direct buffers, shared by all connections. A connection holds one only while there
 * is traffic, so that an idle session stays small.
 *
 * <p>Threads: any, behind one short lock.
 */
final class Chunks {
    /** The longest data segment that we send or receive. RFC 7143 §13.12. */
    static final int SEGMENT_BYTES_MAX = 262_144;
    /** Room for one whole PDU of this size and some headers. */
    static final int CHUNK_BYTES = SEGMENT_BYTES_MAX + 8192;
    /** Number of idle chunks that are kept: about 2 MiB for the whole process. */
    static final int KEPT_MAX = 8;

    private static final ArrayDeque<ByteBuffer> KEPT = new ArrayDeque<>(KEPT_MAX);

    private Chunks() {
    }

    /** Returns an empty chunk. */
    static ByteBuffer take() {
        ByteBuffer kept;
        synchronized (KEPT) {
            kept = KEPT.pollLast();
        }
        return kept == null ? ByteBuffer.allocateDirect(CHUNK_BYTES) : kept;
    }

    static void give(ByteBuffer chunk) {
        chunk.clear();
        synchronized (KEPT) {
            if (KEPT.size() < KEPT_MAX) {
                KEPT.addLast(chunk);
            }
        }
    }
}

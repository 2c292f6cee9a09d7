package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * Memory of a mirror for what its members read, and for what they write that was outside of the
 * heap: a member that is late may use it for as long as it likes. Buffers are kept by size and used
 * again. For any thread.
 */
final class TransferBuffers {
    /** The most that is moved at once; a longer run of blocks is moved in parts. */
    static final int TRANSFER_BYTES_MAX = 16 << 20;

    private static final int BYTES_MIN = 4096;
    /** Of all kept buffers of one size. */
    private static final int KEPT_BYTES_MAX = 4 << 20;
    private static final int KEPT_MAX = 16;

    /** By size: {@link #BYTES_MIN} and its doubles. */
    private final ArrayBlockingQueue<ByteBuffer>[] kept;

    @SuppressWarnings("unchecked")
    TransferBuffers() {
        int sizes = index(KEPT_BYTES_MAX) + 1;
        kept = (ArrayBlockingQueue<ByteBuffer>[]) new ArrayBlockingQueue<?>[sizes];
        for (int index = 0; index < sizes; index++) {
            int fit = KEPT_BYTES_MAX / (BYTES_MIN << index);
            kept[index] = new ArrayBlockingQueue<>(Math.min(fit, KEPT_MAX));
        }
    }

    private static int index(int bytes) {
        int units = (Math.max(bytes, BYTES_MIN) - 1) / BYTES_MIN;
        return Integer.SIZE - Integer.numberOfLeadingZeros(units);
    }

    /** A buffer of so many bytes, with any content. */
    ByteBuffer take(int bytes) {
        int index = index(bytes);
        if (index >= kept.length) {
            return ByteBuffer.allocate(bytes);
        }
        ByteBuffer buffer = kept[index].poll();
        if (buffer == null) {
            // Outside of the heap: sockets and files would copy it there.
            try {
                buffer = ByteBuffer.allocateDirect(BYTES_MIN << index);
            } catch (OutOfMemoryError full) {
                buffer = ByteBuffer.allocate(BYTES_MIN << index);
            }
        }
        return buffer.clear().limit(bytes);
    }

    /** A buffer with what remains of another; throws what that throws when it cannot be read. */
    ByteBuffer copyOf(ByteBuffer data) {
        ByteBuffer copy = take(data.remaining());
        boolean copied = false;
        try {
            copy.put(data.duplicate()).flip();
            copied = true;
            return copy;
        } finally {
            if (!copied) {
                give(copy);
            }
        }
    }

    /** Nobody uses it any more. */
    void give(ByteBuffer buffer) {
        if (buffer.isDirect()) {
            kept[index(buffer.capacity())].offer(buffer);
        }
    }
}

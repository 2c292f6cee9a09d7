package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * A pool of buffers outside of the heap, kept by size and reused, so that sockets and files need
 * not copy their content. Buffers longer than 4 MiB are on the heap and not kept. Thread-safe.
 */
public final class BufferPool {
    private static final int BYTES_MIN = 4096;
    /** Limit of the bytes of all kept buffers of one size. */
    private static final int KEPT_BYTES_MAX = 4 << 20;
    private static final int KEPT_MAX = 16;

    /** Indexed by size: {@link #BYTES_MIN} and its doubles. */
    private final ArrayBlockingQueue<ByteBuffer>[] kept;

    /** Creates an empty pool. */
    @SuppressWarnings("unchecked")
    public BufferPool() {
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

    /**
     * Takes a buffer, with any content.
     *
     * @param bytes its remaining bytes, from position 0
     * @return the buffer; the caller gives it back after use
     */
    public ByteBuffer take(int bytes) {
        int index = index(bytes);
        if (index >= kept.length) {
            return ByteBuffer.allocate(bytes);
        }
        ByteBuffer buffer = kept[index].poll();
        if (buffer == null) {
            // Direct memory: sockets and files would copy heap memory to it.
            try {
                buffer = ByteBuffer.allocateDirect(BYTES_MIN << index);
            } catch (OutOfMemoryError exception) {
                buffer = ByteBuffer.allocate(BYTES_MIN << index);
            }
        }
        return buffer.clear().limit(bytes);
    }

    /**
     * Takes a buffer with a copy of the remaining bytes of another; throws the exception of a
     * buffer that cannot be read.
     *
     * @param data unchanged
     * @return the buffer; the caller gives it back after use
     */
    public ByteBuffer copyOf(ByteBuffer data) {
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

    /**
     * Gives a buffer back, which must not be used any more.
     *
     * @param buffer one that was taken from this pool
     */
    public void give(ByteBuffer buffer) {
        if (buffer.isDirect()) {
            kept[index(buffer.capacity())].offer(buffer);
        }
    }
}

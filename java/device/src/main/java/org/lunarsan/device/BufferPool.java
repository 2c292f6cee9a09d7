package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.concurrent.ArrayBlockingQueue;

/**
 * Buffers outside of the heap, kept by size and used again, so that sockets and files need not copy
 * what is in them. Longer ones than 4 MiB are of the heap and not kept. For any thread.
 */
public final class BufferPool {
    private static final int BYTES_MIN = 4096;
    /** Of all kept buffers of one size. */
    private static final int KEPT_BYTES_MAX = 4 << 20;
    private static final int KEPT_MAX = 16;

    /** By size: {@link #BYTES_MIN} and its doubles. */
    private final ArrayBlockingQueue<ByteBuffer>[] kept;

    /** An empty pool. */
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
     * @param bytes how many remain in it, from position 0 on
     * @return for one user, until it is given back
     */
    public ByteBuffer take(int bytes) {
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

    /**
     * Takes a buffer with a copy of what remains of another; throws what that throws when it cannot
     * be read.
     *
     * @param data stays as it is
     * @return for one user, until it is given back
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
     * Gives a buffer back: nobody uses it any more.
     *
     * @param buffer one that was taken from here
     */
    public void give(ByteBuffer buffer) {
        if (buffer.isDirect()) {
            kept[index(buffer.capacity())].offer(buffer);
        }
    }
}

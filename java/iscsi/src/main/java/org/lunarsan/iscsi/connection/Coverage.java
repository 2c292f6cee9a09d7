package org.lunarsan.iscsi.connection;

import java.util.Arrays;

/**
 * Which bytes of a transfer are done: ranges that neither touch nor overlap, in order.
 *
 * <p>In order, as it nearly always is, that is one range from 0, which needs no room of its own.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Coverage {
    /** Gaps that a transfer may have at one time. */
    static final int RANGES_MAX = 1024;

    private static final int[] NONE = new int[0];
    private static final String BEYOND_END = "reaches beyond the expected data";
    private static final String OUT_OF_ORDER = "is not the next piece of the data";
    private static final String OVERLAPS = "repeats a part of the data";
    private static final String TOO_SCATTERED = "leaves too many gaps in the data";

    /** Where the range ends that begins at 0. */
    private int contiguous;
    /** Start and end of those behind the first gap. */
    private int[] ranges = NONE;
    private int count;

    /** So many bytes from the start; nothing else. */
    void reset(int bytes) {
        contiguous = bytes;
        count = 0;
    }

    /** Bytes from the start without a gap. */
    int contiguous() {
        return contiguous;
    }

    /** Whether there is nothing behind a gap. */
    boolean isWhole() {
        return count == 0;
    }

    /** All bytes. */
    int total() {
        int total = contiguous;
        for (int at = 0; at < count; at++) {
            total += end(at) - start(at);
        }
        return total;
    }

    /**
     * Takes so many bytes at an offset of a transfer of {@code total} bytes in; both numbers of the
     * peer are unsigned. Gives what does not fit, or null.
     */
    String add(int offset, int bytes, int total, boolean inOrder) {
        if (Integer.toUnsignedLong(offset) + Integer.toUnsignedLong(bytes) > total) {
            return BEYOND_END;
        }
        if (inOrder && offset != contiguous) {
            return OUT_OF_ORDER;
        }
        if (count == 0 && offset == contiguous) {
            contiguous += bytes;
            return null;
        }
        return bytes == 0 ? null : insert(offset, offset + bytes);
    }

    private String insert(int from, int to) {
        int after = 0;
        while (after < count && start(after) < from) {
            after++;
        }
        int before = after == 0 ? contiguous : end(after - 1);
        if (before > from || after < count && start(after) < to) {
            return OVERLAPS;
        }
        boolean touchesNext = after < count && start(after) == to;
        if (before == from) {
            int end = touchesNext ? end(after) : to;
            if (touchesNext) {
                remove(after);
            }
            setEnd(after - 1, end);
        } else if (touchesNext) {
            ranges[2 * after] = from;
        } else if (count >= RANGES_MAX) {
            return TOO_SCATTERED;
        } else {
            makeRoom(after, from, to);
        }
        return null;
    }

    private int start(int at) {
        return ranges[2 * at];
    }

    private int end(int at) {
        return ranges[2 * at + 1];
    }

    private void setEnd(int at, int end) {
        if (at < 0) {
            contiguous = end;
        } else {
            ranges[2 * at + 1] = end;
        }
    }

    private void remove(int at) {
        System.arraycopy(ranges, 2 * at + 2, ranges, 2 * at, 2 * (count - at - 1));
        count--;
    }

    private void makeRoom(int at, int from, int to) {
        if (2 * count == ranges.length) {
            ranges = Arrays.copyOf(ranges, Math.max(8, 2 * ranges.length));
        }
        System.arraycopy(ranges, 2 * at, ranges, 2 * at + 2, 2 * (count - at));
        ranges[2 * at] = from;
        ranges[2 * at + 1] = to;
        count++;
    }
}

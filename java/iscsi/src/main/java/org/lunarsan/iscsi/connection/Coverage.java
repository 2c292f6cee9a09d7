package org.lunarsan.iscsi.connection;

import java.util.Arrays;

/**
 * The transferred bytes of a transfer, as ordered ranges that neither touch nor overlap.
 *
 * <p>In the usual case of a transfer in order there is one range from 0, which needs no array.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class Coverage {
    /** Limit of the gaps of a transfer at one time. */
    static final int RANGES_MAX = 1024;

    private static final int[] NONE = new int[0];
    private static final String BEYOND_END = "reaches beyond the expected data";
    private static final String OUT_OF_ORDER = "is not the next piece of the data";
    private static final String OVERLAPS = "repeats a part of the data";
    private static final String TOO_SCATTERED = "leaves too many gaps in the data";

    /** End of the range that begins at 0. */
    private int contiguous;
    /** Start and end of the ranges after the first gap. */
    private int[] ranges = NONE;
    private int count;

    /** Sets the ranges to one of {@code bytes} from the start. */
    void reset(int bytes) {
        contiguous = bytes;
        count = 0;
    }

    /** Returns the number of bytes from the start without a gap. */
    int contiguous() {
        return contiguous;
    }

    /** True if there is no range after a gap. */
    boolean isWhole() {
        return count == 0;
    }

    /** Returns the number of all bytes. */
    int total() {
        int total = contiguous;
        for (int at = 0; at < count; at++) {
            total += end(at) - start(at);
        }
        return total;
    }

    /**
     * Adds {@code bytes} at an offset of a transfer of {@code total} bytes; both numbers of the
     * peer are unsigned. Returns why they do not fit, or null.
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

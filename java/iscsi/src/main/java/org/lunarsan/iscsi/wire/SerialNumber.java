package org.lunarsan.iscsi.wire;

/**
 * Serial numbers that wrap: CmdSN, StatSN, DataSN. An {@code int} holds the 32 bits; they are
 * compared by RFC 1982 arithmetic, as RFC 7143 §4.2.2.1 requires.
 *
 * <p>There is no total order: serial order is not transitive around the circle.
 *
 * <p>Threads: no state.
 */
public final class SerialNumber {
    private SerialNumber() {
    }

    /**
     * True if one number comes before another. Numbers exactly 2^31 apart are unordered: neither is
     * before the other.
     *
     * @param one the one
     * @param other the other
     * @return whether {@code one} is earlier
     */
    public static boolean before(int one, int other) {
        return other - one > 0;
    }

    /**
     * True if one number comes after another.
     *
     * @param one the one
     * @param other the other
     * @return whether {@code one} is later
     */
    public static boolean after(int one, int other) {
        return before(other, one);
    }

    /**
     * True if {@code first <= number <= last} on the circle. An empty window, whose last is its
     * first less one, contains no number.
     *
     * @param number the number
     * @param first first of the window
     * @param last last of the window
     * @return whether it lies inside
     */
    public static boolean within(int number, int first, int last) {
        return !before(number, first) && !after(number, last) && !before(last, first);
    }

    /**
     * Formats the number for messages.
     *
     * @param number the number
     * @return 0 to 4294967295
     */
    public static String toString(int number) {
        return Integer.toUnsignedString(number);
    }
}

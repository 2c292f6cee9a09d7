package org.lunarsan.iscsi.wire;

/**
 * Encodes and decodes the eight bytes of a LUN field, as defined in SAM-5 §4.7, in a {@code long}
 * whose highest byte is the first on the wire.
 *
 * <p>Threads: no state.
 */
public final class Lun {
    /** LUN 0. */
    public static final long ZERO = 0;

    /** The largest number of the single-level forms. */
    public static final int UNIT_MAX = 0x3fff;

    /** The REPORT LUNS well known logical unit. */
    public static final long REPORT_LUNS = 0xc101L << 48;

    private static final long SECOND_LEVEL = 0x0000_ffff_ffff_ffffL;

    private Lun() {
    }

    /**
     * Encodes the number of a unit: peripheral addressing up to 255, flat space above.
     *
     * @param number 0 to {@link #UNIT_MAX}
     * @return the eight bytes
     * @throws IllegalArgumentException for any other number
     */
    public static long of(int number) {
        if (number < 0 || number > UNIT_MAX) {
            throw new IllegalArgumentException(
                    "LUN " + number + " is not within 0 to " + UNIT_MAX);
        }
        long form = number > 0xff ? 0x4000 | number : number;
        return form << 48;
    }

    /**
     * Decodes the number of a unit, in either single-level form.
     *
     * @param lun the eight bytes
     * @return 0 to {@link #UNIT_MAX}, or -1 for any other addressing
     */
    public static int number(long lun) {
        int first = (int) (lun >>> 56);
        if ((lun & SECOND_LEVEL) != 0) {
            return -1;
        }
        if (first == 0) {
            return (int) (lun >>> 48) & 0xff;
        }
        return first >> 6 == 1 ? (int) (lun >>> 48) & UNIT_MAX : -1;
    }

    /**
     * True if two fields name the same unit, in any form.
     *
     * @param one the one
     * @param other the other
     * @return whether they do
     */
    public static boolean isSameUnit(long one, long other) {
        return one == other || number(one) >= 0 && number(one) == number(other);
    }

    /**
     * Formats the field for messages.
     *
     * @param lun the eight bytes
     * @return the unit's number, or the bytes in hex
     */
    public static String toString(long lun) {
        int number = number(lun);
        return number >= 0 ? Integer.toString(number) : "0x%016x".formatted(lun);
    }
}

package org.lunarsan.iscsi.text;

import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * Parses and formats values of RFC 7143 §6.1: numbers, Booleans, ranges, binary strings.
 *
 * <p>Threads: no state.
 */
public final class Values {
    private Values() {
    }

    /**
     * Parses a numerical-value: a decimal-constant without leading zeros, or a hex-constant; below
     * 2^64.
     *
     * @param text the value
     * @return the number, as the {@code long} of the same bits; empty if it is not valid
     */
    public static OptionalLong number(String text) {
        if (hasPrefix(text, 'x')) {
            return accumulate(text, 2, 16);
        }
        if (text.length() > 1 && text.charAt(0) == '0') {
            return OptionalLong.empty();
        }
        return accumulate(text, 0, 10);
    }

    /**
     * Parses a numerical-range {@code low~high}, both included.
     *
     * @param text the value
     * @return low and high, as {@link #number} returns them; empty if it is not valid
     */
    public static Optional<long[]> range(String text) {
        int at = text.indexOf('~');
        if (at < 0) {
            return Optional.empty();
        }
        OptionalLong low = number(text.substring(0, at));
        OptionalLong high = number(text.substring(at + 1));
        boolean sound = low.isPresent() && high.isPresent()
                && Long.compareUnsigned(low.getAsLong(), high.getAsLong()) <= 0;
        return sound ? Optional.of(new long[] {low.getAsLong(), high.getAsLong()})
                : Optional.empty();
    }

    /**
     * Parses {@code Yes} or {@code No}.
     *
     * @param text the value
     * @return the Boolean; empty if neither
     */
    public static Optional<Boolean> bool(String text) {
        return switch (text) {
            case "Yes" -> Optional.of(true);
            case "No" -> Optional.of(false);
            default -> Optional.empty();
        };
    }

    /**
     * Formats a Boolean.
     *
     * @param value the Boolean
     * @return {@code Yes} or {@code No}
     */
    public static String booleanText(boolean value) {
        return value ? "Yes" : "No";
    }

    /**
     * Parses a binary-value as hex-constant or base64-constant. Its length is checked before
     * anything is decoded.
     *
     * @param text the value
     * @param bytesMax limit of the decoded length
     * @return 1 to {@code bytesMax} bytes; empty if it is not valid
     */
    public static Optional<byte[]> binary(String text, int bytesMax) {
        int digits = text.length() - 2;
        if (hasPrefix(text, 'x')) {
            boolean fits = digits > 0 && (digits + 1L) / 2 <= bytesMax;
            return fits ? hex(text.substring(2)) : Optional.empty();
        }
        if (!hasPrefix(text, 'b') || digits == 0 || digits > (bytesMax + 2L) / 3 * 4) {
            return Optional.empty();
        }
        return base64(text.substring(2)).filter(
                bytes -> bytes.length > 0 && bytes.length <= bytesMax);
    }

    /**
     * Formats a binary-value as hex-constant, which every peer supports.
     *
     * @param bytes the value
     * @return {@code 0x} and two digits a byte
     */
    public static String hexText(byte[] bytes) {
        return "0x" + HexFormat.of().formatHex(bytes);
    }

    private static boolean hasPrefix(String text, char letter) {
        return text.length() >= 2 && text.charAt(0) == '0' && (text.charAt(1) | 0x20) == letter;
    }

    private static OptionalLong accumulate(String text, int from, int radix) {
        if (from == text.length()) {
            return OptionalLong.empty();
        }
        long value = 0;
        for (int at = from; at < text.length(); at++) {
            int digit = digit(text.charAt(at), radix);
            long limit = Long.divideUnsigned(-1L - Math.max(digit, 0), radix);
            if (digit < 0 || Long.compareUnsigned(value, limit) > 0) {
                return OptionalLong.empty();
            }
            value = value * radix + digit;
        }
        return OptionalLong.of(value);
    }

    /** Parses ASCII digits only: {@link Character#digit} also accepts those of other scripts. */
    private static int digit(char letter, int radix) {
        return letter < 0x80 ? Character.digit(letter, radix) : -1;
    }

    /** n digits are (n + 1) / 2 bytes; an odd first digit is a separate byte. */
    private static Optional<byte[]> hex(String digits) {
        String whole = digits.length() % 2 == 0 ? digits : "0" + digits;
        byte[] bytes = new byte[whole.length() / 2];
        for (int at = 0; at < bytes.length; at++) {
            int high = digit(whole.charAt(2 * at), 16);
            int low = digit(whole.charAt(2 * at + 1), 16);
            if (high < 0 || low < 0) {
                return Optional.empty();
            }
            bytes[at] = (byte) (high << 4 | low);
        }
        return Optional.of(bytes);
    }

    /**
     * Some peers pad, others do not; both forms are accepted. Bits that belong to no byte are zero.
     */
    private static Optional<byte[]> base64(String digits) {
        try {
            byte[] bytes = Base64.getDecoder().decode(digits);
            String again = Base64.getEncoder().withoutPadding().encodeToString(bytes);
            boolean exact = digits.startsWith(again)
                    && Arrays.asList("", "=", "==").contains(digits.substring(again.length()));
            return exact ? Optional.of(bytes) : Optional.empty();
        } catch (IllegalArgumentException notBase64) {
            return Optional.empty();
        }
    }
}

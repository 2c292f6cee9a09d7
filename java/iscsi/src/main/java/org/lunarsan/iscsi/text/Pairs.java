package org.lunarsan.iscsi.text;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * Parses text: pairs {@code key=value}, each followed by a zero byte. RFC 7143 §6.1.
 *
 * <p>Threads: no state.
 */
public final class Pairs {
    /** Longest key name in bytes. RFC 7143 §6.1. */
    public static final int KEY_BYTES_MAX = 63;

    /**
     * Limit of the pairs of one negotiation (a login, or a text exchange); four times the number of
     * all known keys. Bounds both the work and the {@code NotUnderstood} answers.
     */
    public static final int PAIRS_MAX = 160;

    private Pairs() {
    }

    /**
     * Parses a complete text. Zero bytes after the last delimiter are tolerated, for peers that
     * count their padding into the DataSegmentLength.
     *
     * @param text the whole text
     * @return the pairs in their order
     * @throws TextViolation of the format; the meaning of the values is checked later
     */
    public static List<Pair> parse(byte[] text) throws TextViolation {
        return parse(text, PAIRS_MAX);
    }

    /**
     * Same as {@link #parse(byte[])}, with another limit.
     *
     * @param text the whole text
     * @param pairsMax limit of pairs
     * @return the pairs in their order
     * @throws TextViolation as above
     */
    public static List<Pair> parse(byte[] text, int pairsMax) throws TextViolation {
        List<Pair> pairs = new ArrayList<>();
        int end = trimmedLength(text);
        for (int from = 0; from < end;) {
            int to = from;
            while (to < end && text[to] != 0) {
                to++;
            }
            if (pairs.size() == pairsMax) {
                throw new TextViolation(Kind.TOO_MANY_PAIRS, pairsMax);
            }
            pairs.add(pair(text, from, to));
            from = to + 1;
        }
        return pairs;
    }

    /**
     * Returns the length without the last delimiter and subsequent padding; 0 for no text at all.
     */
    private static int trimmedLength(byte[] text) throws TextViolation {
        int end = text.length;
        if (end > 0 && text[end - 1] != 0) {
            throw new TextViolation(Kind.UNTERMINATED);
        }
        while (end > 0 && text[end - 1] == 0) {
            end--;
        }
        return end;
    }

    private static Pair pair(byte[] text, int from, int to) throws TextViolation {
        String piece = decode(text, from, to);
        int equals = piece.indexOf('=');
        if (equals < 0) {
            throw new TextViolation(Kind.NO_VALUE);
        }
        String name = piece.substring(0, equals);
        String value = piece.substring(equals + 1);
        Key key = Key.named(name);
        if (key == null && !isKeyName(name)) {
            throw new TextViolation(Kind.KEY_NAME);
        }
        // The name of a known key is ASCII, so its characters are its bytes.
        if (key != null && to - from - equals - 1 > key.valueBytesMax()) {
            throw TextViolation.of(Kind.VALUE_TOO_LONG, key);
        }
        return new Pair(key, name, value);
    }

    private static String decode(byte[] text, int from, int to) throws TextViolation {
        try {
            ByteBuffer piece = ByteBuffer.wrap(text, from, to - from);
            return StandardCharsets.UTF_8.newDecoder().decode(piece).toString();
        } catch (CharacterCodingException notUtf8) {
            throw new TextViolation(Kind.NOT_UTF8);
        }
    }

    /**
     * True for a standard-label: a capital letter, then letters, digits, and {@code .-+@_};
     * {@code X#} is accepted because RFC 3720 used it.
     */
    private static boolean isKeyName(String name) {
        if (name.isEmpty() || name.length() > KEY_BYTES_MAX || !isCapital(name.charAt(0))) {
            return false;
        }
        String label = name.startsWith("X#") ? name.substring(2) : name;
        return label.chars().allMatch(Pairs::isLabelLetter);
    }

    private static boolean isCapital(int letter) {
        return letter >= 'A' && letter <= 'Z';
    }

    private static boolean isLabelLetter(int letter) {
        return isCapital(letter) || letter >= 'a' && letter <= 'z'
                || letter >= '0' && letter <= '9' || ".-+@_".indexOf(letter) >= 0;
    }
}

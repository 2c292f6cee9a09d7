package org.lunarsan.iscsi.text;

import java.util.List;

/**
 * What the value of a key is. RFC 7143 §6.1.
 *
 * <p>Threads: immutable.
 */
public sealed interface ValueKind {
    /**
     * numerical-value in a range.
     *
     * @param min least
     * @param max most
     */
    record Number(int min, int max) implements ValueKind {
    }

    /** {@code Yes} or {@code No}. */
    record YesNo() implements ValueKind {
    }

    /**
     * list-of-values.
     *
     * @param words those known here, in the order of their numbers
     */
    record ListOf(List<String> words) implements ValueKind {
    }

    /**
     * Exactly one word.
     *
     * @param words those that are allowed
     */
    record Word(List<String> words) implements ValueKind {
    }

    /** iSCSI-name-value, at most {@link Key#NAME_BYTES_MAX} bytes. */
    record Name() implements ValueKind {
    }

    /** Any text. */
    record Text() implements ValueKind {
    }

    /**
     * binary-value.
     *
     * @param bytesMax at most so many bytes once decoded
     */
    record Binary(int bytesMax) implements ValueKind {
    }

    /**
     * A number in a range; shorter than the constructor, for the table.
     *
     * @param min least
     * @param max most
     * @return the kind
     */
    static ValueKind number(int min, int max) {
        return new Number(min, max);
    }

    /**
     * A list; shorter than the constructor, for the table.
     *
     * @param words those known here
     * @return the kind
     */
    static ValueKind list(String... words) {
        return new ListOf(List.of(words));
    }

    /**
     * A word; shorter than the constructor, for the table.
     *
     * @param words those known here
     * @return the kind
     */
    static ValueKind word(String... words) {
        return new Word(List.of(words));
    }
}

package org.lunarsan.iscsi.text;

import java.util.List;

/**
 * Kind of the value of a key. RFC 7143 §6.1.
 *
 * <p>Threads: immutable.
 */
public sealed interface ValueKind {
    /**
     * numerical-value in a range.
     *
     * @param min minimum
     * @param max maximum
     */
    record Number(int min, int max) implements ValueKind {
    }

    /** {@code Yes} or {@code No}. */
    record YesNo() implements ValueKind {
    }

    /**
     * list-of-values.
     *
     * @param words the supported ones, in the order of their numbers
     */
    record ListOf(List<String> words) implements ValueKind {
    }

    /**
     * Exactly one word.
     *
     * @param words the allowed ones
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
     * @param bytesMax limit of the decoded length
     */
    record Binary(int bytesMax) implements ValueKind {
    }

    /**
     * Creates a number in a range; shorter than the constructor, for the table.
     *
     * @param min minimum
     * @param max maximum
     * @return the kind
     */
    static ValueKind number(int min, int max) {
        return new Number(min, max);
    }

    /**
     * Creates a list; shorter than the constructor, for the table.
     *
     * @param words the supported ones
     * @return the kind
     */
    static ValueKind list(String... words) {
        return new ListOf(List.of(words));
    }

    /**
     * Creates a word; shorter than the constructor, for the table.
     *
     * @param words the allowed ones
     * @return the kind
     */
    static ValueKind word(String... words) {
        return new Word(List.of(words));
    }
}

package org.lunarsan.bench.contestant;

import java.util.Locale;

/** Composition of a disk. Threads: immutable. */
public enum Shape {
    /** One target. */
    SINGLE(1),
    /** Stripes over two targets. */
    RAID0(2),
    /** The same blocks on two targets. */
    RAID1(2);

    private final int members;

    Shape(int members) {
        this.members = members;
    }

    /**
     * Number of targets.
     *
     * @return 1 or 2
     */
    public int members() {
        return members;
    }

    /**
     * The word for commands.
     *
     * @return {@code single}, {@code raid0} or {@code raid1}
     */
    public String word() {
        return name().toLowerCase(Locale.ROOT);
    }

    /**
     * Parses the word of a command.
     *
     * @param word as in commands
     * @return the shape
     */
    public static Shape of(String word) {
        return valueOf(word.toUpperCase(Locale.ROOT));
    }
}

package org.lunarsan.bench.contestant;

import java.util.Locale;

/** What a disk is made of. Threads: immutable. */
public enum Shape {
    /** One target. */
    SINGLE(1),
    /** Stripes over two. */
    RAID0(2),
    /** The same on two. */
    RAID1(2);

    private final int members;

    Shape(int members) {
        this.members = members;
    }

    /**
     * How many targets that takes.
     *
     * @return 1 or 2
     */
    public int members() {
        return members;
    }

    /**
     * As it stands in commands.
     *
     * @return {@code single}, {@code raid0} or {@code raid1}
     */
    public String word() {
        return name().toLowerCase(Locale.ROOT);
    }

    /**
     * The other way round.
     *
     * @param word as in commands
     * @return the shape
     */
    public static Shape of(String word) {
        return valueOf(word.toUpperCase(Locale.ROOT));
    }
}

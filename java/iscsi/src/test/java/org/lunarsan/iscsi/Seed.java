package org.lunarsan.iscsi;

import java.util.Random;

/**
 * Random generators of tests, from one seed that is printed: {@code -Dlunar.seed=N} repeats a run.
 */
public final class Seed {
    private Seed() {
    }

    /** Returns a generator for one property; the seed is written to the log of the test. */
    public static Random of(Class<?> test) {
        long seed = Long.getLong("lunar.seed", System.nanoTime());
        System.out.println(test.getSimpleName() + ": -Dlunar.seed=" + seed);
        return new Random(seed);
    }

    /** Returns random bytes. */
    public static byte[] bytes(Random random, int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }
}

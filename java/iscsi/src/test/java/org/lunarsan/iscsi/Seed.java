package org.lunarsan.iscsi;

import java.util.Random;

/** Randomness of a test, from one seed that is printed: {@code -Dlunar.seed=N} repeats a run. */
public final class Seed {
    private Seed() {
    }

    /** A generator for one property; the seed goes to the log of the test. */
    public static Random of(Class<?> test) {
        long seed = Long.getLong("lunar.seed", System.nanoTime());
        System.out.println(test.getSimpleName() + ": -Dlunar.seed=" + seed);
        return new Random(seed);
    }

    /** Fresh random bytes. */
    public static byte[] bytes(Random random, int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }
}

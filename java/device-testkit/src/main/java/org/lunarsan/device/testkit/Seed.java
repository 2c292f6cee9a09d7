package org.lunarsan.device.testkit;

import java.util.Random;
import java.util.SplittableRandom;

/**
 * Where the randomness of tests comes from: the system property {@code lunar.seed}, or by chance.
 * For any thread.
 */
public final class Seed {
    /** The system property that repeats a run. */
    public static final String PROPERTY = "lunar.seed";

    private static final long VALUE = value();

    private Seed() {}

    private static long value() {
        Long given = Long.getLong(PROPERTY);
        return given != null ? given : new SplittableRandom().nextLong();
    }

    /** A test of random steps. */
    @FunctionalInterface
    public interface Property {
        /**
         * Runs it.
         *
         * @param random all its randomness comes from here
         * @throws Exception as any test may
         */
        void check(Random random) throws Exception;
    }

    /**
     * The seed of this run.
     *
     * @return the same for all tests of a process
     */
    public static long get() {
        return VALUE;
    }

    /**
     * Runs a property with a generator of the seed; when it fails, the message tells the seed.
     *
     * @param property what is to hold
     */
    public static void run(Property property) {
        try {
            property.check(new Random(VALUE));
        } catch (Exception | AssertionError failure) {
            String repeat = " [repeat with -D" + PROPERTY + "=" + VALUE + "]";
            throw new AssertionError(failure.getMessage() + repeat, failure);
        }
    }
}

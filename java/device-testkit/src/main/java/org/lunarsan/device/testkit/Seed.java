package org.lunarsan.device.testkit;

import java.util.Random;
import java.util.SplittableRandom;

/**
 * Seed of random numbers in tests: the system property {@code lunar.seed}, or else a random number.
 * Thread-safe.
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
         * Runs the test.
         *
         * @param random source of all its randomness
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
     * Runs a property with a generator of the seed; the message of a failure contains the seed.
     *
     * @param property the property to check
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

package org.lunarsan.bench.report;

import java.util.Arrays;

/**
 * What the rounds gave.
 *
 * <p>Threads: immutable.
 *
 * @param median the middle one, or the mean of the two in the middle
 * @param least of all rounds
 * @param most of all rounds
 */
public record Spread(double median, double least, double most) {
    /**
     * Of these figures.
     *
     * @param figures at least one
     * @return their spread
     */
    public static Spread of(double[] figures) {
        double[] sorted = figures.clone();
        Arrays.sort(sorted);
        int half = sorted.length / 2;
        double median = sorted.length % 2 == 1
                ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
        return new Spread(median, sorted[0], sorted[sorted.length - 1]);
    }
}

package org.lunarsan.bench.report;

import java.util.Arrays;

/**
 * Median and range of the figures of the rounds.
 *
 * <p>Threads: immutable.
 *
 * @param median the middle one, or the mean of the two in the middle
 * @param least minimum of all rounds
 * @param most maximum of all rounds
 */
public record Spread(double median, double least, double most) {
    /**
     * Computes the spread of figures.
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

package org.lunarsan.bench.table;

import java.util.Arrays;

/**
 * The statistics of the paper's Table 1, and the 99th percentile.
 *
 * <p>Threads: immutable.
 *
 * @param min minimum
 * @param max maximum
 * @param mean average
 * @param deviation standard deviation of the sample
 * @param confidence half the width of the 95 % confidence interval of the mean
 * @param p99 99th percentile (nearest rank)
 * @param runs number of runs
 */
record Statistics(double min, double max, double mean, double deviation, double confidence,
        double p99, int runs) {
    /** The 97.5th percentile of the normal distribution, with which the paper's figures agree. */
    private static final double NORMAL_975 = 1.96;
    private static final double P99 = 0.99;

    /** Computes the statistics of these values, at least one. */
    static Statistics of(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        double mean = Arrays.stream(sorted).average().orElseThrow();
        double squares = Arrays.stream(sorted).map(one -> (one - mean) * (one - mean)).sum();
        double deviation = sorted.length > 1 ? Math.sqrt(squares / (sorted.length - 1)) : 0;
        int rank = (int) Math.ceil(P99 * sorted.length);
        return new Statistics(sorted[0], sorted[sorted.length - 1], mean, deviation,
                NORMAL_975 * deviation / Math.sqrt(sorted.length), sorted[rank - 1],
                sorted.length);
    }
}

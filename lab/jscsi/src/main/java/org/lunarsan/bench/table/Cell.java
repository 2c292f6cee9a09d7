package org.lunarsan.bench.table;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalDouble;
import org.lunarsan.bench.report.Spread;

/**
 * Results of one contestant in one operation on one server: the runs of each round.
 *
 * <p>Threads: for one thread.
 */
final class Cell {
    private static final double NANOS_PER_MILLI = 1e6;

    final Operation operation;
    final String server;
    final String contestant;
    private final List<double[]> rounds = new ArrayList<>();
    private final List<Double> allocated = new ArrayList<>();
    private String failure;

    Cell(Operation operation, String server, String contestant) {
        this.operation = operation;
        this.server = server;
        this.contestant = contestant;
    }

    /** Adds the pairs NANOS:ALLOCATED of a turn's answer. */
    void add(String[] pairs) {
        double[] millis = new double[pairs.length];
        for (int at = 0; at < pairs.length; at++) {
            String[] pair = pairs[at].split(":");
            millis[at] = Long.parseLong(pair[0]) / NANOS_PER_MILLI;
            long bytes = Long.parseLong(pair[1]);
            if (bytes >= 0) {
                allocated.add((double) bytes);
            }
        }
        rounds.add(millis);
    }

    /** Marks the cell as failed; its earlier results do not count. */
    void fail(String why) {
        failure = failure == null ? why : failure;
    }

    boolean isFailed() {
        return failure != null;
    }

    String failure() {
        return failure;
    }

    boolean isEmpty() {
        return rounds.isEmpty() || isFailed();
    }

    /** Statistics in milliseconds. */
    Statistics statistics() {
        return Statistics.of(rounds.stream().flatMapToDouble(Arrays::stream).toArray());
    }

    /** Means of the rounds, in milliseconds. */
    double[] means() {
        return rounds.stream()
                .mapToDouble(round -> Arrays.stream(round).average().orElseThrow())
                .toArray();
    }

    /** Median of bytes allocated for one operation, by all threads; empty: not known. */
    OptionalDouble allocated() {
        return allocated.isEmpty()
                ? OptionalDouble.empty()
                : OptionalDouble.of(Spread.of(
                        allocated.stream().mapToDouble(Double::doubleValue).toArray()).median());
    }
}

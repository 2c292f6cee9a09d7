package org.lunarsan.bench.table;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.stream.DoubleStream;
import org.junit.jupiter.api.Test;

/** The statistics of the table. */
class StatisticsTest {
    private static final double NEAR = 1e-9;

    /** Goal: each figure matches its definition, on values computed by hand. */
    @Test
    void figures() {
        Statistics statistics = Statistics.of(new double[] {4, 2, 4, 4, 5, 5, 7, 9});
        assertEquals(2, statistics.min());
        assertEquals(9, statistics.max());
        assertEquals(5, statistics.mean(), NEAR);
        assertEquals(Math.sqrt(32.0 / 7), statistics.deviation(), NEAR);
        assertEquals(1.96 * Math.sqrt(32.0 / 7) / Math.sqrt(8), statistics.confidence(), NEAR);
        assertEquals(9, statistics.p99());
        assertEquals(8, statistics.runs());
    }

    /** Goal: the percentile is that of the nearest rank: of 1 to 200 the 198th. */
    @Test
    void percentile() {
        assertEquals(198, Statistics.of(DoubleStream.iterate(200, one -> one - 1).limit(200)
                .toArray()).p99());
    }

    /** Goal: one run has no deviation, and is no error. */
    @Test
    void oneRun() {
        Statistics statistics = Statistics.of(new double[] {3});
        assertEquals(0, statistics.deviation());
        assertEquals(3, statistics.p99());
    }

    /** Goal: the paper's confidence intervals follow from its own figures. */
    @Test
    void resultsAgreeWithPublishedExamples() {
        PublishedResult first = PublishedResult.TABLE.getFirst();
        double half = 1.96 * first.deviation() / Math.sqrt(first.runs());
        assertEquals(3.08, first.mean() - half, 0.01);
        assertEquals(3.60, first.mean() + half, 0.01);
    }
}

package org.lunarsan.pool;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

/** Counters of a trial. Thread-safe. */
final class TrialCounts {
    final LongAdder writes = new LongAdder();
    final LongAdder writesFailed = new LongAdder();
    final LongAdder abandoned = new LongAdder();
    final LongAdder reads = new LongAdder();
    final LongAdder readsFailed = new LongAdder();
    final LongAdder flushes = new LongAdder();
    final LongAdder flushesFailed = new LongAdder();
    final LongAdder faults = new LongAdder();
    final LongAdder losses = new LongAdder();
    final LongAdder openings = new LongAdder();
    final LongAdder comparisons = new LongAdder();
    private final AtomicInteger version = new AtomicInteger();

    int nextVersion() {
        return version.incrementAndGet();
    }

    @Override
    public String toString() {
        return writes + " writes acknowledged, " + writesFailed + " failed or abandoned ("
                + abandoned + " abandoned), " + reads + " reads checked, " + readsFailed
                + " failed, "
                + flushes + " flushes, " + flushesFailed + " failed, " + faults + " faults, "
                + losses + " losses counted, " + openings + " openings, " + comparisons
                + " comparisons of all members";
    }
}

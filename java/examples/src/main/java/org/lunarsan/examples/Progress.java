package org.lunarsan.examples;

import java.io.PrintStream;

/**
 * How far a copy is, on one line that is written over.
 *
 * <p>Threads: for one thread.
 */
final class Progress {
    private static final long PAUSE_NANOS = 200_000_000L;
    private static final double SECOND_NANOS = 1e9;

    private final PrintStream out;
    private final long begun = System.nanoTime();
    private long told = begun;
    private boolean any;

    /** To {@code out}; null: to nobody. */
    Progress(PrintStream out) {
        this.out = out;
    }

    void at(long bytes, long all) {
        long now = System.nanoTime();
        if (out != null && now - told >= PAUSE_NANOS) {
            told = now;
            any = true;
            double rate = bytes / (seconds() * (1 << 20));
            out.printf("\r%3d %% of %d MiB, %.1f MiB/s ", bytes * 100 / Math.max(all, 1),
                    all >> 20, rate);
            out.flush();
        }
    }

    void done() {
        if (any) {
            out.println();
        }
    }

    double seconds() {
        return (System.nanoTime() - begun) / SECOND_NANOS;
    }
}

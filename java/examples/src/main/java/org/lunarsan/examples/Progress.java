package org.lunarsan.examples;

import java.io.PrintStream;

/**
 * Progress of a copy: on a terminal one line that is overwritten, elsewhere only the final state.
 *
 * <p>Threads: for one thread.
 */
final class Progress {
    private static final long PAUSE_NANOS = 200_000_000L;
    private static final double SECOND_NANOS = 1e9;
    private static final long PERCENT_MAX = 100;
    /** Overwrites the rest of a longer previous line. */
    private static final String PADDING = "  ";

    private final PrintStream out;
    private final boolean terminal;
    private final long begun = System.nanoTime();
    private long reportedAt = begun;
    /** Set while a line on the terminal is not ended. */
    private boolean unended;

    /** Creates a progress display on {@code out}; null: none. */
    Progress(PrintStream out, boolean terminal) {
        this.out = out;
        this.terminal = terminal;
    }

    /** Shows the number of bytes that are pending or copied. */
    void show(long bytes, long all) {
        long now = System.nanoTime();
        if (out != null && terminal && now - reportedAt >= PAUSE_NANOS) {
            reportedAt = now;
            unended = true;
            out.print("\r" + text(bytes, all) + PADDING);
            out.flush();
        }
    }

    /** Shows the completed copy, which may be too fast for any earlier line. */
    void done(long bytes) {
        if (out != null) {
            String whole = text(bytes, bytes);
            out.println(terminal ? "\r" + whole + PADDING : whole);
            unended = false;
        }
    }

    /** Ends a line that was begun, because nothing follows. */
    void failed() {
        if (unended) {
            out.println();
            unended = false;
        }
    }

    private String text(long bytes, long all) {
        double rate = bytes / (Math.max(seconds(), 1e-3) * (1 << 20));
        long percent = all == 0 ? PERCENT_MAX : bytes * PERCENT_MAX / all;
        return "%3d %% of %s, %.1f MiB/s".formatted(percent, size(all), rate);
    }

    private static String size(long bytes) {
        if (bytes >= 1 << 20) {
            return (bytes >> 20) + " MiB";
        }
        return bytes >= 1 << 10 ? (bytes >> 10) + " KiB" : bytes + " bytes";
    }

    double seconds() {
        return (System.nanoTime() - begun) / SECOND_NANOS;
    }
}

package org.lunarsan.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/**
 * Measures the share of the processors that other processes used meanwhile: the total (/proc/stat)
 * less the usage of this process and its ended children (/proc/self/stat).
 *
 * <p>Threads: for one thread.
 */
final class OtherProcesses {
    /** Share above which figures are not those of a quiet machine. */
    private static final double QUIET = 0.05;
    private static final double PERCENT = 100;
    /** Fields of the line "cpu": user, nice, system, idle, iowait, irq, softirq, steal. */
    private static final List<Integer> BUSY = List.of(1, 2, 3, 6, 7, 8);
    private static final List<Integer> NOT_BUSY = List.of(4, 5);
    /** Fields of /proc/self/stat after the name: utime, stime, cutime, cstime. */
    private static final List<Integer> OWN = List.of(11, 12, 13, 14);

    private final Ticks begun;

    OtherProcesses() throws IOException {
        begun = Ticks.now();
    }

    /** Processor times in clock ticks of the kernel. */
    private record Ticks(long all, long busy, long own) {
        static Ticks now() throws IOException {
            String[] machine;
            try (Stream<String> lines = Files.lines(Path.of("/proc/stat"))) {
                machine = lines.findFirst().orElseThrow().split("\\s+");
            }
            String stat = Files.readString(Path.of("/proc/self/stat"));
            String[] own = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            long busy = sum(machine, BUSY);
            return new Ticks(busy + sum(machine, NOT_BUSY), busy, sum(own, OWN));
        }

        private static long sum(String[] words, List<Integer> which) {
            return which.stream()
                    .mapToLong(at -> Long.parseLong(words[at])).sum();
        }
    }

    /** Returns a sentence with the share since this object was created, and its meaning. */
    String text() throws IOException {
        Ticks now = Ticks.now();
        double share = Math.max(0.0, (now.busy() - begun.busy() - (now.own() - begun.own()))
                / (double) Math.max(1, now.all() - begun.all()));
        return String.format(Locale.ROOT, "%.1f %% of the processors during the run%s",
                share * PERCENT, share <= QUIET ? ""
                        : ": WARNING: the machine was not idle");
    }
}

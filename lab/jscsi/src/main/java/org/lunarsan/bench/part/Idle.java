package org.lunarsan.bench.part;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.report.Verdict;
import org.lunarsan.bench.server.Programs;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.TargetPair;

/** Measures heap and direct memory of an idle session. Threads: for one thread. */
public final class Idle {
    private static final int SESSIONS = 100;
    private static final double GOAL_BYTES = 64 << 10;
    private static final Duration TIME = Duration.ofSeconds(120);

    private Idle() {
    }

    /**
     * Measures.
     *
     * @param lunar the release build of lunar
     * @return the results
     * @throws IOException when a session cannot be opened
     */
    public static Section run(String lunar) throws IOException {
        double[] values;
        try (TargetPair stand = new TargetPair("lunar", lunar)) {
            String said = Programs.run(TIME, Programs.pinned(Programs.CLIENT_CORE, Contestants.jvm(
                    IdleProbe.class.getName(), stand.urls(Shape.SINGLE, false).getFirst(),
                    Integer.toString(SESSIONS))));
            values = Stream.of(said.strip().split(" "))
                    .mapToDouble(word -> Double.parseDouble(word) / SESSIONS).toArray();
        }
        double bytes = values[0] + values[1];
        return new Section("idle", "Idle sessions",
                List.of("sessions", "memory of one session", "bytes"), List.of(
                        row("heap", values[0]), row("direct memory", values[1]),
                        row("heap and direct memory", bytes),
                        row("resident memory, with stacks", values[2]), row("threads", values[3])),
                List.of("Heap: all live objects. Each session has read 4 KiB once. Memory that all"
                        + " sessions share was allocated before."),
                List.of(Map.of("sessions", SESSIONS, "heap_bytes", values[0], "direct_bytes",
                        values[1], "resident_bytes", values[2], "threads", values[3])),
                List.of(new Verdict("an idle session, heap and direct memory", "idle", GOAL_BYTES,
                        false, new double[] {bytes}, "bytes", null)));
    }

    private static List<String> row(String what, double each) {
        return List.of(Integer.toString(SESSIONS), what,
                String.format(Locale.ROOT, "%,.1f", each));
    }
}

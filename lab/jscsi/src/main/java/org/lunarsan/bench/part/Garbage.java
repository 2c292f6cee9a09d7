package org.lunarsan.bench.part;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.report.Verdict;
import org.lunarsan.bench.server.Programs;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.TargetPair;

/** Measures bytes allocated for a small read, by JMH. Threads: for one thread. */
public final class Garbage {
    private static final double GOAL_BYTES = 200;
    private static final Duration TIME = Duration.ofSeconds(300);
    private static final String RESULT = "result ";

    private Garbage() {
    }

    /**
     * Measures.
     *
     * @param lunar the release build of lunar
     * @return the results
     * @throws IOException when JMH fails
     */
    public static Section run(String lunar) throws IOException {
        List<List<String>> rows = new ArrayList<>();
        List<Map<String, Object>> figures = new ArrayList<>();
        List<Verdict> goals = new ArrayList<>();
        for (String line : said(lunar).lines().filter(one -> one.startsWith(RESULT)).toList()) {
            String[] words = line.split(" ");
            double bytes = Double.parseDouble(words[2]);
            double rate = Double.parseDouble(words[3]);
            rows.add(List.of(words[1], "4 KiB reads, one at a time",
                    String.format(Locale.ROOT, "%.1f", bytes),
                    String.format(Locale.ROOT, "%,.0f", rate)));
            figures.add(Map.of("way", words[1], "bytes_per_read", bytes, "reads_per_second", rate));
            goals.add(new Verdict("bytes allocated for a 4 KiB read, " + words[1], "garbage",
                    GOAL_BYTES, false, new double[] {bytes}, "bytes", null));
        }
        if (rows.isEmpty()) {
            throw new IOException("JMH printed no result");
        }
        return new Section("garbage", "Garbage", List.of("into", "load", "bytes allocated for one",
                "reads a second"), rows, List.of("JMH with -prof gc: all threads of the JVM."),
                figures, goals);
    }

    private static String said(String lunar) throws IOException {
        try (TargetPair stand = new TargetPair("lunar", lunar)) {
            List<String> words = new ArrayList<>(List.of(GarbageProbe.class.getName(),
                    stand.urls(Shape.SINGLE, false).getFirst()));
            words.addAll(Contestants.JVM_OPTIONS);
            return Programs.run(TIME, Programs.pinned(Programs.CLIENT_CORE,
                    Contestants.jvm(words.toArray(String[]::new))));
        }
    }
}

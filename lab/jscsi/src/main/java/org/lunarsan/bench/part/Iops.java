package org.lunarsan.bench.part;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.report.Spread;
import org.lunarsan.bench.report.Verdict;
import org.lunarsan.bench.server.Disk;
import org.lunarsan.bench.server.Programs;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.ContestantProcess;
import org.lunarsan.bench.table.TargetPair;

/**
 * Measures small random reads: our initiator by futures and by virtual threads, against
 * {@code lunar bench}, on the same LUN, in turns.
 *
 * <p>Threads: for one thread.
 */
public final class Iops {
    private static final int DEPTH = 32;
    private static final int READ_BYTES = 4096;
    private static final double GOAL = 0.6;
    private static final Duration OVERTIME = Duration.ofSeconds(60);
    private static final double WARM_UP_SECONDS = 0.5;
    private static final Duration WARM_UP = Duration.ofSeconds(5);
    private static final Pattern MEDIAN =
            Pattern.compile("\"iops\"\\s*:\\s*\\{[^}]*\"median\"\\s*:\\s*([0-9.eE+]+)");
    private static final String RUST = "lunar bench, Rust, one thread";

    private final int rounds;
    private final Duration turn;
    private final String lunar;
    private final Path build;
    /** Requests per second of each round, by way of reading. */
    private final Map<String, List<Double>> found = new LinkedHashMap<>();

    /**
     * Creates the measurement.
     *
     * @param rounds number of rounds
     * @param turn time of each measurement in a round
     * @param lunar the release build of lunar
     * @param build the folder of contestants that are built
     */
    public Iops(int rounds, Duration turn, String lunar, Path build) {
        this.rounds = rounds;
        this.turn = turn;
        this.lunar = lunar;
        this.build = build;
    }

    /**
     * Measures.
     *
     * @return the results
     * @throws IOException when a target or contestant fails
     */
    public Section run() throws IOException {
        try (TargetPair stand = new TargetPair("lunar", lunar);
                ContestantProcess ours = Contestants.start(Contestants.OURS, build)) {
            String url = stand.urls(Shape.SINGLE, false).getFirst();
            ours.ask(OVERTIME, "open d single 0 " + url);
            for (String way : List.of("futures", "virtual")) {
                load(ours, way, WARM_UP, 0);
            }
            for (int round = 1; round <= rounds; round++) {
                System.err.println("round " + round + " of " + rounds);
                List<String> order = new ArrayList<>(List.of("futures", "virtual", RUST));
                for (String way : round % 2 == 0 ? order.reversed() : order) {
                    double iops = way.equals(RUST)
                            ? rust(url, round) : load(ours, way, turn, round);
                    found.computeIfAbsent(way, any -> new ArrayList<>()).add(iops);
                }
            }
        }
        return section();
    }

    private static double load(ContestantProcess ours, String way, Duration time, int seed)
            throws IOException {
        String[] said = ours.ask(time.plus(OVERTIME), "load d %s %d %d %d %d %d".formatted(way,
                DEPTH, time.toMillis(), seed, Disk.BYTES / Disk.BLOCK_BYTES,
                READ_BYTES / Disk.BLOCK_BYTES));
        return Double.parseDouble(said[0]);
    }

    private double rust(String url, int seed) throws IOException {
        List<String> words = Programs.pinned(Programs.CLIENT_CORE, List.of(lunar, "bench", url,
                "--json", "--pattern", "rand-read", "--io-size", Integer.toString(READ_BYTES),
                "--depth", Integer.toString(DEPTH), "--threads", "1", "--rounds", "1", "--seconds",
                Double.toString(turn.toMillis() / 1000.0), "--warm-up",
                Double.toString(WARM_UP_SECONDS), "--seed", Integer.toString(seed)));
        Matcher median = MEDIAN.matcher(Programs.run(turn.plus(OVERTIME), words));
        if (!median.find()) {
            throw new IOException("lunar bench printed no figure");
        }
        return Double.parseDouble(median.group(1));
    }

    private double[] rounds(String way) {
        return found.get(way).stream().mapToDouble(Double::doubleValue).toArray();
    }

    private Section section() {
        List<List<String>> rows = new ArrayList<>();
        List<Map<String, Object>> figures = new ArrayList<>();
        List<Verdict> goals = new ArrayList<>();
        for (String way : found.keySet()) {
            double[] ratios = rounds(way);
            double[] theirs = rounds(RUST);
            for (int round = 0; round < ratios.length; round++) {
                ratios[round] /= theirs[round];
            }
            Spread iops = Spread.of(rounds(way));
            Spread ratio = Spread.of(ratios);
            rows.add(List.of(way, "4 KiB random reads, depth " + DEPTH,
                    text("%,.0f (%,.0f to %,.0f)", iops), text("%.2f (%.2f to %.2f)", ratio)));
            figures.add(Map.of("way", way, "iops", iops.median(), "iops_least", iops.least(),
                    "iops_most", iops.most(), "ratio", ratio.median()));
            if (!way.equals(RUST)) {
                goals.add(new Verdict("4 KiB reads, depth 32, by " + way
                        + ": IOPS, share of the Rust initiator's", "iops", GOAL, true, ratios, "",
                        null));
            }
        }
        return new Section("iops", "Small random reads", List.of("calls", "load",
                "requests a second (least to most)", "share of the Rust initiator's"), rows,
                List.of("Each measures for " + turn.toMillis() / 1000.0 + " s in each of " + rounds
                        + " rounds; buffers are direct. `virtual`: " + DEPTH
                        + " virtual threads that call read()."), figures, goals);
    }

    private static String text(String format, Spread spread) {
        return String.format(Locale.ROOT, format, spread.median(), spread.least(), spread.most());
    }
}

package org.lunarsan.bench.part;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.report.Spread;
import org.lunarsan.bench.report.Verdict;
import org.lunarsan.bench.server.Disk;
import org.lunarsan.bench.server.Target;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.ContestantProcess;
import org.lunarsan.bench.table.Table;
import org.lunarsan.bench.table.TargetPair;

/**
 * Measures RAID 0 over two distant targets against one of them, each behind its own relay.
 *
 * <p>Threads: for one thread.
 */
public final class Delay {
    private static final Duration DELAY = Duration.ofMillis(2);
    /** Same window as in `lab papers multi-connection`. */
    private static final long WINDOW_BYTES = 256 << 10;
    /** Larger than any operation. */
    private static final long NO_WINDOW = 64 << 20;
    private static final int OPERATION_BYTES = 8 << 20;
    /** Space of the labels of pools, which is not used. */
    private static final int SPARE_BYTES = 16 << 20;
    private static final int TURN = 4;
    private static final double GOAL = 1.8;
    /** Number of the first rows: our initiator with a window. */
    private static final int GOAL_ROWS = 2;
    private static final double NANOS_PER_MILLI = 1e6;
    private static final Duration TURN_TIME = Duration.ofSeconds(120);

    private final int rounds;
    private final String lunar;
    private final Path build;
    private final List<List<String>> rows = new ArrayList<>();
    private final List<Map<String, Object>> figures = new ArrayList<>();
    private final List<Verdict> goals = new ArrayList<>();

    /**
     * Creates the measurement.
     *
     * @param rounds number of rounds
     * @param lunar the release build of lunar
     * @param build the folder of the contestant in C
     */
    public Delay(int rounds, String lunar, Path build) {
        this.rounds = rounds;
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
        measure(Contestants.OURS, "256 KiB", WINDOW_BYTES);
        measure(Contestants.OURS, "none", NO_WINDOW);
        measure(Contestants.LIBISCSI, "256 KiB", WINDOW_BYTES);
        return new Section("delay", "Over a distance: " + DELAY.toMillis() + " ms each way",
                List.of("contestant, window of each connection", "operation", "one target, ms",
                        "RAID 0 over two, ms", "speed-up"), rows,
                List.of("8 MB operations, " + TURN + " in each turn, " + rounds
                        + " rounds; means of rounds, median (least to most). Each target is behind"
                        + " a relay of its own, with the model of `lunar bench --delay --window`:"
                        + " each byte arrives one delay after it was sent, and its credit returns"
                        + " one delay later. Without a window RAID 0 can save only round trips."),
                figures, goals);
    }

    private void measure(String who, String window, long windowBytes) throws IOException {
        List<Relay> relays = new ArrayList<>();
        try (TargetPair pair = new TargetPair("lunar", lunar);
                ContestantProcess process = Contestants.start(who, build)) {
            for (Target target : pair.targets()) {
                relays.add(new Relay(target.port(), DELAY, windowBytes));
            }
            open(process, pair, relays, Shape.SINGLE);
            open(process, pair, relays, Shape.RAID0);
            for (String verb : List.of("write", "read")) {
                double[] one = new double[rounds];
                double[] two = new double[rounds];
                turn(process, Shape.SINGLE, verb, 0);
                turn(process, Shape.RAID0, verb, 0);
                for (int round = 0; round < rounds; round++) {
                    List<Shape> order = List.of(Shape.SINGLE, Shape.RAID0);
                    for (Shape shape : round % 2 == 0 ? order : order.reversed()) {
                        (shape == Shape.SINGLE ? one : two)[round] =
                                turn(process, shape, verb, round + 1);
                    }
                }
                addResult(who, window, verb, one, two);
            }
        } finally {
            relays.forEach(Relay::close);
        }
    }

    private static void open(ContestantProcess process, TargetPair pair, List<Relay> relays,
            Shape shape) throws IOException {
        List<String> urls = new ArrayList<>();
        for (int at = 0; at < shape.members(); at++) {
            Target target = pair.targets().get(at);
            urls.add(target.url(target.luns().get(shape.ordinal()), relays.get(at).port()));
        }
        process.ask(TURN_TIME, "open %s %s %d %s".formatted(shape.word(), shape.word(),
                Table.STRIPE_BYTES, String.join(" ", urls)));
    }

    /** Returns the mean of a turn in milliseconds. */
    private static double turn(ContestantProcess process, Shape shape, String verb, int seed)
            throws IOException {
        String[] pairs = process.ask(TURN_TIME, "turn %s %s %d %d %d %d".formatted(shape.word(),
                verb, OPERATION_BYTES / Disk.BLOCK_BYTES, TURN, seed,
                (Disk.BYTES - SPARE_BYTES) / Disk.BLOCK_BYTES));
        return Arrays.stream(pairs).mapToLong(pair -> Long.parseLong(pair.split(":")[0]))
                .average().orElseThrow() / NANOS_PER_MILLI;
    }

    private void addResult(String who, String window, String verb, double[] one, double[] two) {
        double[] ratios = new double[rounds];
        for (int round = 0; round < rounds; round++) {
            ratios[round] = one[round] / two[round];
        }
        Spread ratio = Spread.of(ratios);
        rows.add(List.of(who + ", " + window, verb + " 8 MB", text(one), text(two),
                String.format(Locale.ROOT, "%.2f (%.2f to %.2f)", ratio.median(), ratio.least(),
                        ratio.most())));
        figures.add(Map.of("contestant", who, "window", window, "verb", verb,
                "one_ms", Spread.of(one).median(), "two_ms", Spread.of(two).median(),
                "ratio", ratio.median()));
        if (rows.size() <= GOAL_ROWS) {
            goals.add(new Verdict("RAID 0 over two targets, " + DELAY.toMillis()
                    + " ms each way, windows of 256 KiB, " + verb + " 8 MB: times as fast as one",
                    "delay", GOAL, true, ratios, "", null));
        }
    }

    private static String text(double[] millis) {
        Spread spread = Spread.of(millis);
        return String.format(Locale.ROOT, "%.1f (%.1f to %.1f)", spread.median(), spread.least(),
                spread.most());
    }
}

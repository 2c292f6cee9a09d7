package org.lunarsan.bench.table;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.report.Verdict;

/** Formats the table for people and for programs, beside the paper's, with its goals. */
final class TableSection {
    private static final List<String> COLUMNS = List.of("operation, ms", "contestant, target",
            "min", "max", "avg", "stddev", "conf95", "p99", "runs", "bytes allocated");
    /** Smallest speed-up over the published jSCSI. */
    private static final double JSCSI_GOAL = 3;
    /** Largest ratio to libiscsi's time. */
    private static final double LIBISCSI_GOAL = 1.2;

    private final Table.Plan plan;
    private final List<Cell> cells;

    TableSection(Table.Plan plan, List<Cell> cells) {
        this.plan = plan;
        this.cells = cells;
    }

    Section section() {
        List<List<String>> rows = new ArrayList<>();
        for (Operation operation : plan.operations()) {
            PublishedResult.TABLE.stream().filter(row -> row.operation() == operation)
                    .forEach(row -> rows.add(paperRow(row)));
            cells.stream().filter(cell -> cell.operation == operation)
                    .forEach(cell -> rows.add(row(cell)));
        }
        return new Section("table", "The paper's Table 1, beside Lunar's figures", COLUMNS, rows,
                notes(), cells.stream().map(TableSection::figures).toList(), goals());
    }

    private static List<String> paperRow(PublishedResult row) {
        double half = 1.96 * row.deviation() / Math.sqrt(row.runs());
        return List.of(row.operation().title(), "the paper: " + row.initiator(), number(row.min()),
                number(row.max()), number(row.mean()), number(row.deviation()),
                interval(row.mean(), half), "-", Integer.toString(row.runs()), "-");
    }

    private static List<String> row(Cell cell) {
        String title = cell.operation.title();
        String who = cell.contestant + " on " + cell.server;
        if (cell.isEmpty()) {
            return List.of(title, who + (cell.isFailed() ? ": failed" : ""), "-", "-", "-", "-",
                    "-", "-", "0", "-");
        }
        Statistics statistics = cell.statistics();
        OptionalDouble allocated = cell.allocated();
        return List.of(title, who, number(statistics.min()), number(statistics.max()),
                number(statistics.mean()), number(statistics.deviation()),
                interval(statistics.mean(), statistics.confidence()), number(statistics.p99()),
                Integer.toString(statistics.runs()), allocated.isPresent()
                        ? String.format(Locale.ROOT, "%,.0f", allocated.getAsDouble()) : "-");
    }

    private static String interval(double mean, double half) {
        return "[" + number(mean - half) + "; " + number(mean + half) + "]";
    }

    private static String number(double millis) {
        return String.format(Locale.ROOT, millis >= 100 ? "%,.0f" : millis >= 10 ? "%.2f" : "%.3f",
                millis);
    }

    private List<String> notes() {
        List<String> notes = new ArrayList<>();
        notes.add("%d runs of each contestant, in %d turns; contestants alternate within each"
                .formatted(plan.runs(), plan.rounds()) + " round. Each operation runs for "
                + plan.warmUp().toMillis() / 1000.0 + " s before. 1 kB is 1,024 bytes; offsets are"
                + " random, aligned to the operation. Bytes allocated: median of the runs, all"
                + " threads of the JVM.");
        notes.add("RAID 0 has stripes of " + Table.STRIPE_BYTES / 1024 + " KiB. `lunar-java`"
                + " uses org.lunarsan.pool, with labels, and for RAID 1 with its record of pending"
                + " writes. For the published jSCSI this bench runs a thread for each target, as"
                + " in jSCSI's storage pool, which is not in Maven Central. `libiscsi` uses two"
                + " sessions in one poll loop.");
        notes.add("`jscsi` is org.jscsi:initiator:2.2 with its default settings (segments of"
                + " 8 KiB), `jscsi-large` the same with segments of 256 KiB. It supports neither"
                + " unit attentions nor LUNs other than 0: a class loader adds both, outside of"
                + " reads and writes.");
        cells.stream().filter(Cell::isFailed).forEach(cell -> notes.add("Failed: " + cell.contestant
                + " on " + cell.server + ", " + cell.operation.title() + ": " + cell.failure()));
        return notes;
    }

    private static Map<String, Object> figures(Cell cell) {
        Map<String, Object> members = new LinkedHashMap<>();
        members.put("operation", cell.operation.key());
        members.put("server", cell.server);
        members.put("contestant", cell.contestant);
        members.put("failure", cell.failure());
        if (!cell.isEmpty()) {
            Statistics statistics = cell.statistics();
            Map<String, Object> millis = new LinkedHashMap<>();
            millis.put("min", statistics.min());
            millis.put("max", statistics.max());
            millis.put("mean", statistics.mean());
            millis.put("standard_deviation", statistics.deviation());
            millis.put("confidence_95", List.of(statistics.mean() - statistics.confidence(),
                    statistics.mean() + statistics.confidence()));
            millis.put("p99", statistics.p99());
            members.put("milliseconds", millis);
            members.put("runs", statistics.runs());
            OptionalDouble allocated = cell.allocated();
            members.put("bytes_allocated",
                    allocated.isPresent() ? allocated.getAsDouble() : null);
        }
        return members;
    }

    private List<Verdict> goals() {
        List<Verdict> goals = new ArrayList<>();
        for (String server : plan.servers()) {
            for (Operation operation : List.of(Operation.READ_400_KB, Operation.WRITE_8_MB)) {
                for (String contestant : List.of(Contestants.JSCSI, Contestants.JSCSI_LARGE)) {
                    goals.add(goal("times as fast as " + contestant, operation, server, JSCSI_GOAL,
                            true, contestant));
                }
            }
            goals.add(goal("time, of libiscsi's", Operation.READ_400_KB, server, LIBISCSI_GOAL,
                    false, Contestants.LIBISCSI));
        }
        return goals;
    }

    private Verdict goal(String what, Operation operation, String server, double wanted,
            boolean isAtLeast, String contestant) {
        double[] ours = means(operation, server, Contestants.OURS);
        double[] theirs = means(operation, server, contestant);
        double[] ratios = new double[Math.min(ours.length, theirs.length)];
        for (int round = 0; round < ratios.length; round++) {
            ratios[round] = isAtLeast
                    ? theirs[round] / ours[round] : ours[round] / theirs[round];
        }
        return new Verdict(operation.title() + ", on " + server + ": " + what,
                operation.key() + " on " + server, wanted, isAtLeast, ratios, "", null);
    }

    private double[] means(Operation operation, String server, String contestant) {
        Optional<Cell> cell = cells.stream().filter(one -> one.operation == operation
                && one.server.equals(server) && one.contestant.equals(contestant)
                && operation.shape() == Shape.SINGLE).findFirst();
        return cell.isEmpty() || cell.get().isEmpty() ? new double[0] : cell.get().means();
    }
}

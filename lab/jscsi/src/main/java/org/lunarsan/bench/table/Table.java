package org.lunarsan.bench.table;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.lunarsan.bench.contestant.OperationData;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.server.Disk;

/**
 * Measures the paper's table in one interleaved run: in each round, for each server and each
 * operation, all contestants take turns; every second round in reverse order. After each turn the
 * data of one operation is checked in the files behind the LUNs, outside of the measurement.
 *
 * <p>Threads: for one thread.
 */
public final class Table implements AutoCloseable {
    /** Stripe length of RAID 0, for all contestants. */
    public static final int STRIPE_BYTES = 64 << 10;

    /** Space of the labels of pools, which no contestant uses. */
    private static final int SPARE_BYTES = 16 << 20;
    private static final Duration TURN_TIME = Duration.ofSeconds(60);
    private static final int TURN_MIN = 5;
    /** Name of the disk of a turn. */
    private static final String DISK = "disk";
    /** Seeds of checks, distinct from those of turns. */
    private static final long CHECKS = 1L << 40;

    private final Plan plan;
    private final Path build;
    private final List<TargetPair> targetPairs = new ArrayList<>();
    private final Map<String, ContestantProcess> processes = new HashMap<>();
    private final List<Cell> cells = new ArrayList<>();

    /**
     * Duration and participants of a run.
     *
     * @param runs operations of each kind, a multiple of the rounds
     * @param rounds number of turns over which they are spread
     * @param warmUp time for which each contestant runs each operation before that
     * @param servers of {@code lunar} and {@code tgt}
     * @param contestants of {@link Contestants#ALL}
     * @param operations the rows
     */
    public record Plan(int runs, int rounds, Duration warmUp, List<String> servers,
            List<String> contestants, List<Operation> operations) {
    }

    /**
     * Starts all servers and contestants, and logs in.
     *
     * @param plan the plan
     * @param lunar the release build of lunar
     * @param build the folder of the contestant in C
     * @throws IOException when something does not start
     */
    public Table(Plan plan, String lunar, Path build) throws IOException {
        this.plan = plan;
        this.build = build;
        try {
            for (String server : plan.servers()) {
                targetPairs.add(new TargetPair(server, lunar));
            }
        } catch (IOException failed) {
            close();
            throw failed;
        }
    }

    /**
     * Runs all rounds.
     *
     * @return the table
     */
    public Section run() {
        for (TargetPair pair : targetPairs) {
            for (Operation operation : plan.operations()) {
                for (String contestant : plan.contestants()) {
                    Cell cell = new Cell(operation, pair.name(), contestant);
                    cells.add(cell);
                    print("warm-up: %s, %s, %s", pair.name(), operation.title(), contestant);
                    guarded(cell, () -> warmUp(pair, cell));
                }
            }
        }
        for (int round = 0; round < plan.rounds(); round++) {
            print("round %d of %d", round + 1, plan.rounds());
            List<Cell> order = new ArrayList<>(cells);
            if (round % 2 == 1) {
                Collections.reverse(order);
            }
            for (Cell cell : order) {
                int seed = round + 1;
                guarded(cell, () -> turn(pair(cell), cell, seed));
            }
        }
        return new TableSection(plan, cells).section();
    }

    /** Work in which a contestant may fail. */
    private interface Work {
        void run() throws IOException;
    }

    private void guarded(Cell cell, Work work) {
        if (cell.isFailed()) {
            return;
        }
        try {
            work.run();
        } catch (IOException failed) {
            cell.fail(failed.getMessage());
            print("%s, %s, %s failed: %s", cell.server, cell.operation.title(), cell.contestant,
                    failed.getMessage());
        }
    }

    private TargetPair pair(Cell cell) {
        return targetPairs.stream().filter(one -> one.name().equals(cell.server)).findFirst()
                .orElseThrow();
    }

    private void warmUp(TargetPair pair, Cell cell) throws IOException {
        loggedIn(pair, cell, () -> {
            long until = System.nanoTime() + plan.warmUp().toNanos();
            do {
                ask(pair, cell, "turn", TURN_MIN + " 0");
            } while (System.nanoTime() - until < 0);
            check(pair, cell, 0);
        });
    }

    /** A first operation is not measured, because the connection is new. */
    private void turn(TargetPair pair, Cell cell, int seed) throws IOException {
        loggedIn(pair, cell, () -> {
            ask(pair, cell, "turn", "1 0");
            String[] pairs = ask(pair, cell, "turn",
                    plan.runs() / plan.rounds() + " " + seed);
            check(pair, cell, seed);
            cell.add(pairs);
        });
    }

    /**
     * Logs in for one turn: the processes do not answer a target's pings while they are idle, and
     * Lunar closes such connections.
     */
    private void loggedIn(TargetPair pair, Cell cell, Work work) throws IOException {
        Shape shape = cell.operation.shape();
        ContestantProcess process = process(pair, cell);
        try {
            process.ask(TURN_TIME, "open %s %s %d %s".formatted(DISK, shape.word(), STRIPE_BYTES,
                    String.join(" ", pair.urls(shape, hasLabels(cell)))));
            work.run();
            process.ask(TURN_TIME, "close");
        } catch (IOException failed) {
            // The state of the process is unknown; the next turn starts a new one.
            process.end();
            throw failed;
        }
    }

    /** Compares the data of one operation with the bytes in the files. */
    private void check(TargetPair pair, Cell cell, int seed) throws IOException {
        Operation operation = cell.operation;
        String[] answer = ask(pair, cell, "check", Long.toString(CHECKS + seed));
        byte[] expected;
        if (!hasLabels(cell)) {
            expected = pair.bytes(operation.shape(), STRIPE_BYTES, Long.parseLong(answer[0]),
                    operation.blocks());
        } else {
            // The block layout of a contestant's own pool is internal, so read through the
            // contestant.
            expected = new byte[operation.bytes()];
            OperationData.fill(expected, CHECKS + seed);
            answer = ask(pair, cell, "check read", Long.toString(CHECKS + seed));
        }
        if (Long.parseUnsignedLong(answer[1], 16) != OperationData.hash(expected)) {
            throw new IOException("wrong data at block " + answer[0]);
        }
    }

    private static boolean hasLabels(Cell cell) {
        return cell.contestant.equals(Contestants.OURS) && cell.operation.shape() != Shape.SINGLE;
    }

    /** Sends {@code WHAT disk [VERB] BLOCKS ARGUMENTS RANGE}. */
    private String[] ask(TargetPair pair, Cell cell, String what, String arguments)
            throws IOException {

        Operation operation = cell.operation;
        String[] words = what.split(" ");
        long range = (Disk.BYTES - SPARE_BYTES) / Disk.BLOCK_BYTES;
        return process(pair, cell).ask(TURN_TIME, "%s %s %s %d %s %d".formatted(words[0], DISK,
                words.length > 1 ? words[1] : operation.verb(), operation.blocks(), arguments,
                range));
    }

    private ContestantProcess process(TargetPair pair, Cell cell) throws IOException {
        String key = pair.name() + " " + cell.contestant;
        ContestantProcess known = processes.get(key);
        if (known != null && known.isAlive()) {
            return known;
        }
        ContestantProcess process = Contestants.start(cell.contestant, build);
        processes.put(key, process);
        return process;
    }

    private static void print(String format, Object... values) {
        System.err.println(String.format(Locale.ROOT, format, values));
    }

    @Override
    public void close() {
        processes.values().forEach(ContestantProcess::close);
        targetPairs.forEach(TargetPair::close);
    }
}

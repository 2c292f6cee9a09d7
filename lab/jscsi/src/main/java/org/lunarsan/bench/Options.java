package org.lunarsan.bench;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.Operation;
import org.lunarsan.bench.table.Table;

/**
 * The options of the command line.
 *
 * <p>Threads: immutable.
 */
final class Options {
    static final List<String> PARTS = List.of("table", "iops", "delay", "idle", "garbage");
    static final String HELP = """
            Usage: make bench-java BENCH_ARGS="OPTIONS"

            Our Java initiator, the published jSCSI and libiscsi in turns, on Lunar and on tgt, as
            the jSCSI paper measured. Wants root (tgt), two cores, and what `scripts/setup bench`
            installs. Nothing else should be at work.

              --parts LIST         of %s (all)
              --runs N             of each operation; a multiple of --rounds (100)
              --rounds N           turns that the runs are spread over; of other parts too (10)
              --warm-up SECONDS    of each contestant in each operation, before that (1.5)
              --seconds SECONDS    of each turn where requests a second are counted (2)
              --servers LIST       of lunar,tgt (both)
              --contestants LIST   of %s (all)
              --operations LIST    of %s (all)
              --lunar PROGRAM      the release build (LUNAR_BIN)
              --source DIRECTORY   where libiscsi-ops.c is (lab/jscsi)
              --build DIRECTORY    where what is built goes (lab/jscsi/target)
              --json FILE          everything, for programs; `make bench` takes its goals by
                                   --goals-from
              --markdown FILE      a chapter for docs/papers.md
              --strict             fail when a goal is missed

            Example:
              make bench-java BENCH_ARGS="--parts table --runs 20 --rounds 2 --servers lunar"
            """.formatted(String.join(",", PARTS), String.join(",", Contestants.ALL),
            String.join(",", keys()));

    private static final List<String> SERVERS = List.of("lunar", "tgt");
    private static final int RUNS_MAX = 100_000;
    private static final double SECONDS_MAX = 3600;
    private static final double MILLIS = 1000;
    /** Options with a value. */
    private static final List<String> NAMES = List.of("parts", "runs", "rounds", "warm-up",
            "seconds", "servers", "contestants", "operations", "lunar", "source", "build", "json",
            "markdown");

    /** Options that name a path of this machine. */
    private static final List<String> PATHS =
            List.of("lunar", "source", "build", "json", "markdown");

    private final Map<String, String> values = new LinkedHashMap<>();
    private boolean isHelp;
    private boolean isStrict;

    private Options() {
    }

    static Options parse(String[] arguments) {
        Options options = new Options();
        for (int at = 0; at < arguments.length; at++) {
            String name = arguments[at].startsWith("--") ? arguments[at].substring(2) : "";
            if (name.equals("help")) {
                options.isHelp = true;
            } else if (name.equals("strict")) {
                options.isStrict = true;
            } else if (NAMES.contains(name) && at + 1 < arguments.length) {
                options.values.put(name, arguments[++at]);
            } else {
                throw new IllegalArgumentException("`" + arguments[at] + "` is not understood");
            }
        }
        options.plan();
        options.parts();
        options.seconds();
        return options;
    }

    boolean help() {
        return isHelp;
    }

    boolean strict() {
        return isStrict;
    }

    /** Returns the command line for another run, without paths. */
    String command() {
        String words = values.entrySet().stream().filter(one -> !PATHS.contains(one.getKey()))
                .map(one -> "--" + one.getKey() + " " + one.getValue())
                .collect(Collectors.joining(" "));
        return "make bench-java" + (words.isEmpty() ? "" : " BENCH_ARGS=\"" + words + "\"");
    }

    List<String> parts() {
        return list("parts", PARTS);
    }

    Table.Plan plan() {
        int runs = number("runs", 100);
        int rounds = rounds();
        if (runs % rounds != 0) {
            throw new IllegalArgumentException("--runs is no multiple of --rounds");
        }
        List<Operation> operations = new ArrayList<>();
        for (String key : list("operations", keys())) {
            Stream.of(Operation.values()).filter(one -> one.key().equals(key))
                    .forEach(operations::add);
        }
        return new Table.Plan(runs, rounds, duration("warm-up", 1.5), list("servers", SERVERS),
                list("contestants", Contestants.ALL), operations);
    }

    int rounds() {
        return number("rounds", 10);
    }

    Duration seconds() {
        return duration("seconds", 2);
    }

    String lunar() {
        String program = values.getOrDefault("lunar", System.getenv("LUNAR_BIN"));
        return program != null ? program : "target/release/lunar";
    }

    Path source() {
        return Path.of(values.getOrDefault("source", "lab/jscsi"));
    }

    Path build() {
        return Path.of(values.getOrDefault("build", "lab/jscsi/target"));
    }

    Path json() {
        return values.containsKey("json") ? Path.of(values.get("json")) : null;
    }

    Path markdown() {
        return values.containsKey("markdown") ? Path.of(values.get("markdown")) : null;
    }

    private static List<String> keys() {
        return Arrays.stream(Operation.values()).map(Operation::key).toList();
    }

    private List<String> list(String name, List<String> all) {
        String text = values.get(name);
        List<String> chosen = text == null ? all : List.of(text.split(","));
        for (String one : chosen) {
            if (!all.contains(one)) {
                throw new IllegalArgumentException(
                        "--" + name + ": there is no `" + one + "`, but " + all);
            }
        }
        return chosen;
    }

    private int number(String name, int otherwise) {
        String text = values.getOrDefault(name, Integer.toString(otherwise));
        if (!text.matches("[0-9]{1,6}") || Integer.parseInt(text) < 1
                || Integer.parseInt(text) > RUNS_MAX) {
            throw new IllegalArgumentException("--" + name + " is a number from 1 to " + RUNS_MAX);
        }
        return Integer.parseInt(text);
    }

    private Duration duration(String name, double otherwise) {
        String text = values.getOrDefault(name, Double.toString(otherwise));
        if (!text.matches("[0-9]{1,4}(\\.[0-9]{1,3})?") || Double.parseDouble(text) > SECONDS_MAX) {
            throw new IllegalArgumentException(
                    "--" + name + " is a number of seconds, from 0 to 3600");
        }
        return Duration.ofMillis(Math.round(Double.parseDouble(text) * MILLIS));
    }
}

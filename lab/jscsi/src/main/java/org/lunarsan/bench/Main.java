package org.lunarsan.bench;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.lunarsan.bench.part.Delay;
import org.lunarsan.bench.part.Garbage;
import org.lunarsan.bench.part.Idle;
import org.lunarsan.bench.part.Iops;
import org.lunarsan.bench.report.Report;
import org.lunarsan.bench.report.Section;
import org.lunarsan.bench.table.Contestants;
import org.lunarsan.bench.table.Table;

/**
 * {@code make bench-java}: measures our Java initiator, the published jSCSI and libiscsi on the
 * same targets, as the jSCSI paper did. {@code --help} explains the options.
 *
 * <p>Threads: one, and those that read the output of processes.
 */
public final class Main {
    private static final int FAILED = 1;
    private static final int MISUSED = 2;

    private Main() {
    }

    /**
     * Runs the bench.
     *
     * @param arguments as explained by {@code --help}
     */
    public static void main(String[] arguments) {
        System.exit(exitCode(arguments));
    }

    private static int exitCode(String[] arguments) {
        Options options;
        try {
            options = Options.parse(arguments);
        } catch (IllegalArgumentException wrong) {
            System.err.println("bench-java: " + wrong.getMessage() + "; see --help");
            return MISUSED;
        }
        if (options.help()) {
            System.out.println(Options.HELP);
            return 0;
        }
        try {
            Report report = alone(options);
            System.out.print(report.text());
            write(options.json(), report.json());
            write(options.markdown(), report.markdown());
            return options.strict() && !report.isMet() ? FAILED : 0;
        } catch (IOException failed) {
            System.err.println("bench-java: " + failed.getMessage());
            for (Throwable cause = failed.getCause(); cause != null; cause = cause.getCause()) {
                System.err.println("  because: " + cause.getMessage());
            }
            return FAILED;
        }
    }

    /** Two concurrent runs would disturb each other's measurements. */
    private static Report alone(Options options) throws IOException {
        Path path = Path.of(System.getProperty("java.io.tmpdir"), "lunar-bench-java.lock");
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE,
                StandardOpenOption.WRITE); FileLock lock = channel.tryLock()) {
            if (lock == null) {
                throw new IOException("another bench-java is at work (" + path
                        + " is locked): both would measure each other");
            }
            return run(options);
        }
    }

    private static Report run(Options options) throws IOException {
        List<Section> sections = new ArrayList<>();
        Map<String, String> facts = MachineFacts.of(options);
        Contestants.compile(options.source(), options.build());
        OtherProcesses others = new OtherProcesses();
        for (String part : options.parts()) {
            System.err.println("part " + part);
            sections.add(part(part, options));
        }
        facts.put("others", others.text());
        return new Report(options.command(), facts, sections);
    }

    private static Section part(String part, Options options) throws IOException {
        switch (part) {
            case "table" -> {
                try (Table table = new Table(options.plan(), options.lunar(), options.build())) {
                    return table.run();
                }
            }
            case "iops" -> {
                return new Iops(options.rounds(), options.seconds(), options.lunar(),
                        options.build()).run();
            }
            case "delay" -> {
                return new Delay(options.rounds(), options.lunar(), options.build()).run();
            }
            case "idle" -> {
                return Idle.run(options.lunar());
            }
            case "garbage" -> {
                return Garbage.run(options.lunar());
            }
            default -> throw new IOException("no part is called " + part);
        }
    }

    private static void write(Path path, String text) throws IOException {
        if (path != null) {
            Files.writeString(path, text, StandardCharsets.UTF_8);
        }
    }
}

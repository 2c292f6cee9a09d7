package org.lunarsan.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.lunarsan.bench.server.Programs;
import org.lunarsan.bench.table.Contestants;

/** Collects facts about the machine and programs of a measurement. Threads: without state. */
final class MachineFacts {
    private static final Duration ASK_TIME = Duration.ofSeconds(10);

    private MachineFacts() {
    }

    static Map<String, String> of(Options options) {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("date", LocalDate.now(ZoneOffset.UTC).toString());
        facts.put("processor", processor());
        facts.put("kernel", System.getProperty("os.name") + " " + System.getProperty("os.version"));
        facts.put("Java", Runtime.version() + ", " + String.join(" ", Contestants.JVM_OPTIONS));
        facts.put("Lunar", said(List.of(options.lunar(), "--version")));
        facts.put("tgt", said(List.of("dpkg-query", "-W", "-f", "${Version}", "tgt")));
        facts.put("libiscsi", said(List.of("dpkg-query", "-W", "-f", "${Version}",
                "libiscsi-dev")));
        facts.put("where", "targets on core " + Programs.SERVER_CORE + ", contestants on core "
                + Programs.CLIENT_CORE + ", loopback; files of 256 MiB in tmpfs, write-back");
        return facts;
    }

    private static String processor() {
        try {
            return Files.readAllLines(Path.of("/proc/cpuinfo")).stream()
                    .filter(line -> line.startsWith("model name")).findFirst()
                    .map(line -> line.substring(line.indexOf(':') + 1).strip()).orElse("-")
                    + ", " + Runtime.getRuntime().availableProcessors() + " cores";
        } catch (IOException unknown) {
            return "-";
        }
    }

    private static String said(List<String> words) {
        try {
            return Programs.run(ASK_TIME, words).strip().lines().findFirst().orElse("-");
        } catch (IOException unknown) {
            return "-";
        }
    }
}

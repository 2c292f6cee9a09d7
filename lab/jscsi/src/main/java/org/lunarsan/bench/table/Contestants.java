package org.lunarsan.bench.table;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.lunarsan.bench.contestant.ContestantMain;
import org.lunarsan.bench.server.Programs;

/** The contestants, and their commands. Threads: immutable. */
public final class Contestants {
    /** Our initiator and pool of {@code java/}. */
    public static final String OURS = "lunar-java";
    /** The published jSCSI with its own settings. */
    public static final String JSCSI = "jscsi";
    /** The published jSCSI with segments of 256 KiB. */
    public static final String JSCSI_LARGE = "jscsi-large";
    /** The C library. */
    public static final String LIBISCSI = "libiscsi";
    /** All of them. */
    public static final List<String> ALL = List.of(OURS, JSCSI, JSCSI_LARGE, LIBISCSI);

    /** Options of all JVMs of contestants. */
    public static final List<String> JVM_OPTIONS =
            List.of("-XX:+UseSerialGC", "-Xms512m", "-Xmx512m");

    private static final Duration COMPILE_TIME = Duration.ofSeconds(60);

    private Contestants() {
    }

    /**
     * Starts a contestant.
     *
     * @param name one of {@link #ALL}
     * @param build the folder of built programs
     * @return its process
     * @throws IOException when it does not start, or is not known
     */
    public static ContestantProcess start(String name, Path build) throws IOException {
        if (!ALL.contains(name)) {
            throw new IOException("no contestant is called " + name + "; there are " + ALL);
        }
        if (name.equals(LIBISCSI)) {
            return new ContestantProcess(name, List.of(build.resolve("libiscsi-ops").toString()));
        }
        return new ContestantProcess(name, jvm(ContestantMain.class.getName(), name));
    }

    /**
     * Returns the command that runs a class of this program in a separate JVM.
     *
     * @param words the class and its arguments
     * @return the program and its arguments
     */
    public static List<String> jvm(String... words) {
        List<String> all = new ArrayList<>();
        all.add(Programs.java());
        all.addAll(JVM_OPTIONS);
        all.add("-Dlog4j.configuration=quiet-log4j.properties");
        all.addAll(List.of("-cp", System.getProperty("java.class.path")));
        all.addAll(List.of(words));
        return all;
    }

    /**
     * Builds the contestant in C.
     *
     * @param source the folder with libiscsi-ops.c
     * @param build the folder for the program
     * @throws IOException when cc or the library is missing
     */
    public static void compile(Path source, Path build) throws IOException {
        Files.createDirectories(build);
        try {
            Programs.run(COMPILE_TIME, List.of("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o",
                    build.resolve("libiscsi-ops").toString(),
                    source.resolve("libiscsi-ops.c").toString(), "-liscsi"));
        } catch (IOException failed) {
            throw new IOException("libiscsi-ops.c cannot be built: scripts/setup bench installs"
                    + " what is missing", failed);
        }
    }
}

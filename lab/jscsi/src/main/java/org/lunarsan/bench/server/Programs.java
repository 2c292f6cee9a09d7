package org.lunarsan.bench.server;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Starting programs, on one processor core if one is named, and waiting for them no longer than
 * told. Threads: without state.
 */
public final class Programs {
    /** Where targets run. */
    public static final int SERVER_CORE = 0;
    /** Where contestants run. */
    public static final int CLIENT_CORE = 1;

    private static final Duration KILL_TIME = Duration.ofSeconds(5);

    private Programs() {
    }

    /**
     * The words that run a program on one core.
     *
     * @param core which
     * @param words the program and its arguments
     * @return the words with taskset before them
     */
    public static List<String> pinned(int core, List<String> words) {
        List<String> all = new ArrayList<>(
                List.of("taskset", "--cpu-list", Integer.toString(core)));
        all.addAll(words);
        return all;
    }

    /**
     * Runs a program to its end.
     *
     * @param time how long it may take
     * @param words the program and its arguments
     * @return what it wrote to standard output
     * @throws IOException when it fails, or takes longer; what it said is in the message
     */
    public static String run(Duration time, List<String> words) throws IOException {
        Path said = Files.createTempFile("lunar-bench", ".out");
        Path complained = Files.createTempFile("lunar-bench", ".err");
        try {
            Process process = new ProcessBuilder(words).redirectInput(new File("/dev/null"))
                    .redirectOutput(said.toFile()).redirectError(complained.toFile()).start();
            String what = String.join(" ", words);
            if (!await(process, time)) {
                kill(process);
                throw new IOException(what + " took longer than " + time.toSeconds() + " s");
            }
            if (process.exitValue() != 0) {
                throw new IOException(what + " failed (" + process.exitValue() + "): "
                        + Files.readString(complained, StandardCharsets.UTF_8).strip());
            }
            return Files.readString(said, StandardCharsets.UTF_8);
        } finally {
            Files.delete(said);
            Files.delete(complained);
        }
    }

    /**
     * Ends a process, and waits until it has ended.
     *
     * @param process ended by SIGKILL
     */
    public static void kill(Process process) {
        process.descendants().forEach(ProcessHandle::destroyForcibly);
        process.destroyForcibly();
        await(process, KILL_TIME);
    }

    private static boolean await(Process process, Duration time) {
        try {
            return process.waitFor(time.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /**
     * The java of this process.
     *
     * @return its path
     */
    public static String java() {
        return Path.of(System.getProperty("java.home"), "bin", "java").toString();
    }
}

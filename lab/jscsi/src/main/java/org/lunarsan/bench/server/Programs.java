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
 * Starts programs, optionally on one processor core, and waits for them for a limited time.
 * Threads: without state.
 */
public final class Programs {
    /** Core of the targets. */
    public static final int SERVER_CORE = 0;
    /** Core of the contestants. */
    public static final int CLIENT_CORE = 1;

    private static final Duration KILL_TIME = Duration.ofSeconds(5);

    private Programs() {
    }

    /**
     * Returns the command that runs a program on one core.
     *
     * @param core the core
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
     * @param time its time limit
     * @param words the program and its arguments
     * @return its standard output
     * @throws IOException when it fails, or takes longer; the message contains its output
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
        } catch (InterruptedException exception) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /**
     * Path of the java program of this process.
     *
     * @return its path
     */
    public static String java() {
        return Path.of(System.getProperty("java.home"), "bin", "java").toString();
    }
}

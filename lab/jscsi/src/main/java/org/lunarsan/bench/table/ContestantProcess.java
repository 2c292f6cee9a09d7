package org.lunarsan.bench.table;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.lunarsan.bench.server.Programs;

/**
 * The process of a contestant, on the core for clients, which answers commands. A process that does
 * not answer in time is killed.
 *
 * <p>Threads: for one; another reads the output of the process.
 */
public final class ContestantProcess implements AutoCloseable {
    private static final Duration CLOSE_TIME = Duration.ofSeconds(10);
    private static final String GOOD = "ok";

    private final String name;
    private final Process process;
    private final BufferedWriter input;
    /** Answers of the process; empty: it has ended. */
    private final BlockingQueue<Optional<String>> answers = new LinkedBlockingQueue<>();

    /**
     * Starts the process.
     *
     * @param name for messages
     * @param words the program and its arguments
     * @throws IOException when it does not start
     */
    public ContestantProcess(String name, List<String> words) throws IOException {
        this.name = name;
        process = new ProcessBuilder(Programs.pinned(Programs.CLIENT_CORE, words))
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        input = process.outputWriter(StandardCharsets.UTF_8);
        BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
        Thread.ofPlatform().daemon().name(name + " output").start(() -> listen(output));
    }

    private void listen(BufferedReader output) {
        try {
            output.lines().forEach(line -> answers.add(Optional.of(line)));
        } catch (UncheckedIOException ended) {
            // Same as when its output ends: the missing answer is reported.
        }
        answers.add(Optional.empty());
    }

    /**
     * Sends a command and waits for its answer.
     *
     * @param time the time limit
     * @param command one line
     * @return the words after "ok"
     * @throws IOException when the answer is not "ok", or late
     */
    public String[] ask(Duration time, String command) throws IOException {
        try {
            input.write(command);
            input.newLine();
            input.flush();
            Optional<String> answer = answers.poll(time.toMillis(), TimeUnit.MILLISECONDS);
            if (answer == null) {
                Programs.kill(process);
                throw new IOException(name + " did not answer within " + time.toSeconds()
                        + " s and was ended: " + command);
            }
            String line = answer.orElseThrow(
                    () -> new IOException(name + " has ended before it answered: " + command));
            String[] words = line.split(" ");
            if (!words[0].equals(GOOD)) {
                throw new IOException(name + ": " + command + ": " + line);
            }
            return List.of(words).subList(1, words.length).toArray(String[]::new);
        } catch (InterruptedException exception) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while " + name + " was answering", exception);
        }
    }

    /** Ends the process at once. */
    void end() {
        Programs.kill(process);
    }

    /**
     * True if the process can take commands.
     *
     * @return false after its end
     */
    boolean isAlive() {
        return process.isAlive();
    }

    @Override
    public void close() {
        try {
            if (process.isAlive()) {
                ask(CLOSE_TIME, "close");
            }
        } catch (IOException exception) {
            System.err.println(exception.getMessage());
        } finally {
            Programs.kill(process);
        }
    }
}

package org.lunarsan.initiator.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/** A server in a separate process, and its output. Threads: one for its output. */
final class Server implements AutoCloseable {
    private static final long START_SECONDS_MAX = 60;
    private static final InetAddress LOOPBACK = InetAddress.getLoopbackAddress();
    private static final int PORT_FIRST = 20_000;
    private static final int PORTS = 12_000;
    private static final AtomicInteger PORT_NEXT = new AtomicInteger();

    private final Process process;
    private final List<String> lines = new ArrayList<>();
    private final CompletableFuture<String> ready = new CompletableFuture<>();

    /** Starts the process; a line that contains {@code sign} means that it is ready. */
    Server(String sign, List<String> command) throws IOException {
        process = new ProcessBuilder(command).redirectErrorStream(true).start();
        Thread.ofPlatform().daemon().start(() -> listen(sign));
        // No server outlives the tests, however they end.
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
    }

    private void listen(String sign) {
        try (BufferedReader output = process.inputReader(StandardCharsets.UTF_8)) {
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                synchronized (lines) {
                    lines.add(line);
                }
                if (line.contains(sign)) {
                    ready.complete(line);
                }
            }
        } catch (IOException ignored) {
            // The process has ended.
        }
        ready.completeExceptionally(new IOException("it ended: " + log()));
    }

    /** Returns the line that means that the server is ready. */
    String awaitReady() throws IOException {
        try {
            return ready.get(START_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException | TimeoutException | InterruptedException failed) {
            close();
            throw new IOException("it did not start: " + log(), failed);
        }
    }

    private String log() {
        synchronized (lines) {
            return String.join("\n", lines);
        }
    }

    /** Ends the server as a power cut would, and waits until it is gone. */
    void kill() {
        process.destroyForcibly();
        process.onExit().join();
    }

    @Override
    public void close() {
        kill();
    }

    /**
     * Returns a free port below the ephemeral range, so that no client gets it before the server
     * listens or listens again.
     */
    static int freePort() throws IOException {
        int begin = Math.floorMod(ProcessHandle.current().pid() * 61, PORTS);
        for (int i = 0; i < PORTS; i++) {
            int port = PORT_FIRST + (begin + PORT_NEXT.getAndIncrement()) % PORTS;
            try (ServerSocket socket = new ServerSocket(port, 1, LOOPBACK)) {
                return socket.getLocalPort();
            } catch (BindException exception) {
                continue;
            }
        }
        throw new IOException("no port from " + PORT_FIRST + " on is free");
    }

    /** Runs a program to its end, which has to be successful. */
    static void runChecked(String... command) throws IOException {
        Process run = new ProcessBuilder(command).redirectErrorStream(true).start();
        String said = new String(run.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (run.onExit().join().exitValue() != 0) {
            throw new IOException(String.join(" ", command) + ": " + said);
        }
    }

    /**
     * Finds a program of the system, also if the directories of root's programs are not in the
     * path.
     */
    static String program(String name) throws IOException {
        String path = System.getenv("PATH") + ":/usr/sbin:/sbin";
        for (String folder : path.split(":")) {
            if (Files.isExecutable(Path.of(folder, name))) {
                return Path.of(folder, name).toString();
            }
        }
        throw new IOException(name + " is missing: scripts/setup test installs it");
    }
}

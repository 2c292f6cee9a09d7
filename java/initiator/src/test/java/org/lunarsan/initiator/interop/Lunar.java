package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Our own server on a free port, with a target of one LUN. Threads: for one thread. */
final class Lunar implements AutoCloseable {
    static final String TARGET = "iqn.2026-11.org.lunarsan.test:java";

    private final List<String> command;
    private final int port;
    private Server server;

    /** Starts {@code lunar serve ARGUMENTS}, and returns when it listens. */
    Lunar(String... arguments) throws IOException {
        port = Server.freePort();
        command = new ArrayList<>(List.of(binary(), "serve"));
        command.addAll(List.of(arguments));
        command.addAll(List.of("--listen", address(), "--name", TARGET, "--api", "none"));
        start();
    }

    /** Returns {@code LUNAR_BIN}, or the release build of this repository. */
    private static String binary() throws IOException {
        String named = System.getenv("LUNAR_BIN");
        Path built = Path.of("..", "..", "target", "release", "lunar").toAbsolutePath().normalize();
        Path path = named == null ? built : Path.of(named);
        if (!Files.isExecutable(path)) {
            throw new IOException("there is no server at " + path + ": make release builds it,"
                    + " or LUNAR_BIN names another one");
        }
        return path.toString();
    }

    /** Starts the server, also again after {@link #kill}. */
    void start() throws IOException {
        server = new Server("listening on", command);
        server.awaitReady();
    }

    /** Ends the server as a power cut would. */
    void kill() {
        server.kill();
    }

    int port() {
        return port;
    }

    String address() {
        return "127.0.0.1:" + port;
    }

    String url() {
        return "iscsi://" + address() + "/" + TARGET + "/0";
    }

    @Override
    public void close() {
        server.close();
    }
}

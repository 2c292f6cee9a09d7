package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Debian's tgt as a peer. LUN 0 is its controller, LUN 1 a file; it ignores SIGTERM while a target
 * is defined. Threads: for one thread.
 */
final class Tgt implements AutoCloseable {
    static final String TARGET = "iqn.2026-11.org.lunarsan.test:tgt";
    private static final long START_NANOS_MAX = 60_000_000_000L;

    private final Server server;
    private final String control;
    private final int port;

    Tgt(Path file) throws IOException {
        port = Server.freePort();
        // A control port is a socket with a number, and any number may be in use by another tgtd.
        control = "TGT_IPC_SOCKET=" + file.toAbsolutePath().resolveSibling("control-" + port);
        server = new Server("never", List.of("env", control, Server.program("tgtd"), "-f",
                "--iscsi", "portal=127.0.0.1:" + port));
        awaitReady();
        admin("new", "--mode", "target", "--tid", "1", "-T", TARGET);
        admin("new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file.toString());
        admin("bind", "--mode", "target", "--tid", "1", "-I", "ALL");
    }

    /** Polls until tgtd answers, because it prints nothing when it is ready. */
    private void awaitReady() throws IOException {
        long until = System.nanoTime() + START_NANOS_MAX;
        while (true) {
            try {
                admin("show", "--mode", "target");
                return;
            } catch (IOException exception) {
                if (until - System.nanoTime() <= 0) {
                    throw exception;
                }
                Thread.onSpinWait();
            }
        }
    }

    void admin(String... arguments) throws IOException {
        List<String> all = new ArrayList<>(
                List.of("env", control, Server.program("tgtadm"), "--lld", "iscsi", "--op"));
        all.addAll(List.of(arguments));
        Server.runChecked(all.toArray(String[]::new));
    }

    void allowDigests() throws IOException {
        for (String key : List.of("HeaderDigest", "DataDigest")) {
            admin("update", "--mode", "target", "--tid", "1", "-n", key, "-v", "CRC32C");
        }
    }

    void requireChap(String user, String secret) throws IOException {
        admin("new", "--mode", "account", "--user", user, "--password", secret);
        admin("bind", "--mode", "account", "--tid", "1", "--user", user);
    }

    String address() {
        return "127.0.0.1:" + port;
    }

    String url() {
        return "iscsi://" + address() + "/" + TARGET + "/1";
    }

    @Override
    public void close() {
        server.close();
    }
}

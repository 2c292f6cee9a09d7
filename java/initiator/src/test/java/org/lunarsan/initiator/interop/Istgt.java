package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;

/**
 * Debian's istgt as a peer: plain login and I/O. SendTargets makes it loop. Threads: for one
 * thread.
 */
final class Istgt implements AutoCloseable {
    static final String TARGET = "iqn.2026-11.org.lunarsan.test:istgt";
    private static final long START_NANOS_MAX = 60_000_000_000L;

    private final Server server;
    private final int port;

    Istgt(Path folder, Path file) throws IOException {
        port = Server.freePort();
        int control = Server.freePort();
        Path accounts = secret(folder.resolve("istgt-auth.conf"), "[AuthGroup1]\n");
        String text = """
                [Global]
                  NodeBase "iqn.2026-11.org.lunarsan.test"
                  AuthFile %s
                  MediaDirectory %s
                  Timeout 30
                  NopInInterval 20
                  DiscoveryAuthMethod None
                  MaxSessions 32
                  MaxConnections 1
                  MaxR2T 16
                  MaxOutstandingR2T 16
                  DefaultTime2Wait 0
                  DefaultTime2Retain 20
                  FirstBurstLength 65536
                  MaxBurstLength 262144
                  MaxRecvDataSegmentLength 65536
                  InitialR2T Yes
                  ImmediateData Yes
                  DataPDUInOrder Yes
                  DataSequenceInOrder Yes
                  ErrorRecoveryLevel 0
                [UnitControl]
                  AuthMethod None
                  AuthGroup None
                  Portal UC1 127.0.0.1:%d
                  Netmask 127.0.0.1
                [PortalGroup1]
                  Portal DA1 127.0.0.1:%d
                [InitiatorGroup1]
                  InitiatorName "ALL"
                  Netmask 127.0.0.1
                [LogicalUnit1]
                  TargetName istgt
                  Mapping PortalGroup1 InitiatorGroup1
                  AuthMethod None
                  AuthGroup AuthGroup1
                  UseDigest Auto
                  UnitType Disk
                  QueueDepth 32
                  LUN0 Storage %s Auto
                """.formatted(accounts, folder, control, port, file);
        Path configuration = secret(folder.resolve("istgt.conf"), text);
        server = new Server("command queuing", List.of(Server.program("istgt"), "-D", "-c",
                configuration.toString(), "-p", folder.resolve("istgt.pid").toString()));
        server.awaitReady();
        awaitListening();
    }

    /** istgt refuses a file of accounts that other users can read. */
    private static Path secret(Path path, String text) throws IOException {
        Files.deleteIfExists(path);
        Files.createFile(path, PosixFilePermissions.asFileAttribute(
                PosixFilePermissions.fromString("rw-------")));
        return Files.writeString(path, text);
    }

    private void awaitListening() throws IOException {
        long until = System.nanoTime() + START_NANOS_MAX;
        while (true) {
            try {
                new Socket("127.0.0.1", port).close();
                return;
            } catch (IOException exception) {
                if (until - System.nanoTime() <= 0) {
                    throw exception;
                }
                Thread.onSpinWait();
            }
        }
    }

    String url() {
        return "iscsi://127.0.0.1:" + port + "/" + TARGET + "/0";
    }

    @Override
    public void close() {
        server.close();
    }
}

package org.lunarsan.bench.server;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;

/** Debian's tgt on a free port; requires root. Threads: for one thread. */
public final class TgtTarget implements Target {
    private static final Duration START_TIME = Duration.ofSeconds(10);
    private static final Duration ADMIN_TIME = Duration.ofSeconds(10);
    private static final long POLL_NANOS = 50_000_000;
    /** Next number of a target of this process. */
    private static final AtomicInteger NEXT = new AtomicInteger(
            (int) (ProcessHandle.current().pid() % 3_000) * 10);

    private final String iqn;
    private final List<Disk> disks;
    /** A folder with the control socket: a control port may be in use by another tgtd. */
    private final Path control;
    private final int port;
    private final Process process;

    /**
     * Starts tgtd on the core of servers, and returns when it serves.
     *
     * @param name suffix of its IQN
     * @param disks served as LUN 1 to n, through the page cache
     * @throws IOException when it is not installed, does not start, or refuses
     */
    public TgtTarget(String name, List<Disk> disks) throws IOException {
        iqn = "iqn.2026-11.org.lunarsan.bench:tgt-" + name;
        this.disks = List.copyOf(disks);
        int number = NEXT.getAndIncrement();
        control = Files.createTempDirectory("lunar-bench-tgt");
        // Not an ephemeral port, which a client could get before tgt does.
        port = 20_000 + number % 12_000;
        process = new ProcessBuilder(Programs.pinned(Programs.SERVER_CORE,
                List.of("env", variable(), "tgtd", "-f", "--iscsi", "portal=127.0.0.1:" + port)))
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectError(ProcessBuilder.Redirect.DISCARD).start();
        try {
            define();
        } catch (IOException failed) {
            close();
            throw failed;
        }
    }

    /** Returns the environment variable of the control socket, for env(1). */
    private String variable() {
        return "TGT_IPC_SOCKET=" + control.resolve("control");
    }

    private void define() throws IOException {
        awaitStart();
        admin("new", "--mode", "target", "--tid", "1", "-T", iqn);
        for (int lun : luns()) {
            admin("new", "--mode", "logicalunit", "--tid", "1", "--lun", Integer.toString(lun),
                    "-b", disks.get(lun - 1).path().toString());
        }
        admin("bind", "--mode", "target", "--tid", "1", "-I", "ALL");
    }

    private void awaitStart() throws IOException {
        long until = System.nanoTime() + START_TIME.toNanos();
        while (true) {
            try {
                admin("show", "--mode", "target");
                return;
            } catch (IOException exception) {
                if (System.nanoTime() - until > 0 || !process.isAlive()) {
                    throw new IOException("tgtd does not start: install tgt, and run as root",
                            exception);
                }
                LockSupport.parkNanos(POLL_NANOS);
            }
        }
    }

    private void admin(String... words) throws IOException {
        List<String> all = new ArrayList<>(
                List.of("env", variable(), "tgtadm", "--lld", "iscsi", "--op"));
        all.addAll(List.of(words));
        Programs.run(ADMIN_TIME, all);
    }

    @Override
    public String name() {
        return "tgt";
    }

    @Override
    public int port() {
        return port;
    }

    @Override
    public String iqn() {
        return iqn;
    }

    @Override
    public List<Disk> disks() {
        return disks;
    }

    /** Numbers from 1: LUN 0 is the controller of tgt and cannot be removed. */
    @Override
    public List<Integer> luns() {
        return IntStream.rangeClosed(1, disks.size()).boxed().toList();
    }

    /** tgtd ignores SIGTERM while a target is defined, so it is killed. */
    @Override
    public void close() {
        Programs.kill(process);
        for (String name : List.of("control.0", "control.0.lock", "")) {
            // A file that stays is small, and in the folder for temporary files.
            control.resolve(name).toFile().delete();
        }
    }
}

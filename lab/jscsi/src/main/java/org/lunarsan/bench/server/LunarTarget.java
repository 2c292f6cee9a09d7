package org.lunarsan.bench.server;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** {@code lunar serve} on a free port. Threads: for one thread. */
public final class LunarTarget implements Target {
    private static final String LISTENS = "listening on 127.0.0.1:";

    private final String iqn;
    private final List<Disk> disks;
    private final Process process;
    private final int port;

    /**
     * Starts the server on the core of servers, and returns when it listens.
     *
     * @param program the release build of lunar
     * @param name suffix of its IQN
     * @param disks served as LUN 0 to n, through the page cache, write-back
     * @throws IOException when it does not listen
     */
    public LunarTarget(String program, String name, List<Disk> disks) throws IOException {
        iqn = "iqn.2026-11.org.lunarsan.bench:lunar-" + name;
        this.disks = List.copyOf(disks);
        List<String> words = new ArrayList<>(List.of(program, "serve", "--listen", "127.0.0.1:0",
                "--name", iqn, "--cache", "write-back", "--api", "none"));
        disks.forEach(disk -> words.add(disk.path().toString()));
        process = new ProcessBuilder(Programs.pinned(Programs.SERVER_CORE, words))
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader said = process.inputReader(StandardCharsets.UTF_8);
        String line = said.readLine();
        while (line != null && !line.startsWith(LISTENS)) {
            line = said.readLine();
        }
        if (line == null) {
            Programs.kill(process);
            throw new IOException("lunar serve ended before it listened");
        }
        port = Integer.parseInt(line.substring(LISTENS.length()).strip());
        // The server may print more; the pipe must not fill.
        Thread.ofPlatform().daemon().name("lunar says").start(() -> said.lines().forEach(more -> {
        }));
    }

    @Override
    public String name() {
        return "lunar";
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

    @Override
    public List<Integer> luns() {
        return IntStream.range(0, disks.size()).boxed().toList();
    }

    @Override
    public void close() {
        Programs.kill(process);
    }
}

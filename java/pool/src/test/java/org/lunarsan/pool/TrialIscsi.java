package org.lunarsan.pool;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.initiator.IscsiUrl;

/** Members that are processes of {@code lunar serve}, each behind a proxy. */
final class TrialIscsi implements TrialMembers {
    private static final String TARGET = "iqn.2026-11.org.lunarsan.test:trial";
    private static final int COUNT = 2;
    private static final int SIZE_BYTES =
            PoolLayout.FRONT_BYTES + Members.BLOCKS * Members.BLOCK + PoolLabel.BYTES;

    /** One process, with its proxy and device. */
    private static final class Member {
        final Path file;
        final List<String> command;
        final TrialProxy proxy;
        final IscsiDevice device;
        Process process;
        boolean stopped;

        Member(String binary, Path folder, int number) throws IOException {
            file = folder.resolve("member" + number);
            int port;
            try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                port = free.getLocalPort();
            }
            command = List.of(binary, "serve", file.toString(), "--size", "" + SIZE_BYTES,
                    "--listen", "127.0.0.1:" + port, "--name", TARGET + number,
                    "--cache", "write-back", "--api", "none");
            proxy = new TrialProxy(port);
            IscsiOptions options = IscsiOptions.builder()
                    .pingInterval(Duration.ofMillis(500)).pingTime(Duration.ofMillis(500))
                    .recoveryTime(Duration.ofSeconds(5)).build();
            device = IscsiDevice.of(IscsiUrl.parse(
                    "iscsi://127.0.0.1:" + proxy.port() + "/" + TARGET + number + "/0"), options);
            Runtime.getRuntime().addShutdownHook(new Thread(this::kill));
        }

        void start() throws IOException {
            process = new ProcessBuilder(command).redirectErrorStream(true).start();
            BufferedReader output = process.inputReader();
            StringBuilder said = new StringBuilder();
            String line;
            do {
                line = output.readLine();
                said.append(line).append('\n');
            } while (line != null && !line.contains("listening on"));
            if (line == null) {
                throw new IOException("a server did not start: " + said);
            }
            Thread.ofVirtual().start(() -> output.lines().forEach(more -> { }));
        }

        void kill() {
            if (process != null) {
                process.destroyForcibly();
                process.onExit().join();
            }
        }

        void signal(String name) throws IOException {
            new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().onExit().join();
            stopped = name.equals("STOP");
        }

        void heal() throws IOException {
            if (stopped) {
                signal("CONT");
            }
            if (!process.isAlive()) {
                start();
            }
            proxy.heal();
        }
    }

    private final List<Member> all = new ArrayList<>();
    private final Path folder;

    TrialIscsi(String binary) throws IOException, DeviceException {
        folder = Files.createTempDirectory("lunar-trial");
        for (int number = 0; number < COUNT; number++) {
            Member member = new Member(binary, folder, number);
            all.add(member);
            member.start();
        }
        Members.mirror(devices());
    }

    @Override
    public List<? extends Device> devices() {
        return all.stream().map(member -> member.device).toList();
    }

    @Override
    public void fault(Random random, TrialRound round) throws Exception {
        // Two members at once more often than one.
        int count = random.nextInt(3) == 0 ? 1 : COUNT;
        int first = random.nextInt(COUNT);
        int kind = random.nextInt(5);
        for (int index = 0; index < count; index++) {
            Member member = all.get((first + index) % COUNT);
            round.note("fault " + kind + " of " + member.file.getFileName());
            switch (kind) {
                case 0 -> member.kill();
                case 1 -> {
                    member.kill();
                    member.start();
                    member.stopped = false;
                }
                case 2 -> member.signal("STOP");
                default -> member.proxy.cut(kind == 3);
            }
        }
    }

    @Override
    public void heal() throws IOException {
        for (Member member : all) {
            member.heal();
        }
    }

    @Override
    public List<byte[]> contents() throws IOException {
        List<byte[]> contents = new ArrayList<>();
        for (Member member : all) {
            byte[] bytes = new byte[Members.BLOCKS * Members.BLOCK];
            try (RandomAccessFile file = new RandomAccessFile(member.file.toFile(), "r")) {
                file.seek(PoolLayout.FRONT_BYTES);
                file.readFully(bytes);
            }
            contents.add(bytes);
        }
        return contents;
    }

    @Override
    public long memberMillisMax() {
        return 100;
    }

    @Override
    public int pauseMillisMax() {
        return 500;
    }

    @Override
    public void close() throws IOException {
        for (Member member : all) {
            member.kill();
            member.proxy.close();
        }
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.toList().reversed()) {
                Files.delete(file);
            }
        }
    }
}

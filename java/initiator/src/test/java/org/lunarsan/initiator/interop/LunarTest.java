package org.lunarsan.initiator.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.testkit.Seed;
import org.lunarsan.initiator.Discovery;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiException;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.text.Digest;

/** Our own server: integrity, cuts, kills, size, two programs, authentication. */
@Tag("interop")
final class LunarTest {
    private static final List<Integer> KINDS = List.of(Opcode.SCSI_COMMAND, Opcode.DATA_OUT,
            Opcode.SCSI_RESPONSE, Opcode.DATA_IN, Opcode.READY_TO_TRANSFER, Opcode.LOGIN_REQUEST,
            Opcode.LOGIN_RESPONSE);
    private static final int THREADS = 4;
    private static final int PART_BLOCKS = 2048;
    /** Less than a piece of a long write, so that R2Ts are needed. */
    private static final int FIRST_BURST_BYTES = 64 << 10;
    /** Bounds the wait for a kind of PDU that never comes. */
    private static final long CUT_SECONDS_MAX = 120;

    /** Goal: no data is lost at whatever PDU the connection is cut, with and without digests. */
    @Test
    void cutsLoseNothing() {
        Seed.run(random -> {
            for (boolean digests : new boolean[] {false, true}) {
                cuts(random, digests);
            }
        });
    }

    private static void cuts(Random random, boolean digests) throws Exception {
        try (Lunar server = new Lunar("mem:8M", "--block-size", "512");
                Relay relay = new Relay(server.port(), digests, digests)) {
            Digest digest = digests ? Digest.CRC32C : Digest.NONE;
            IscsiOptions options = IscsiOptions.builder().headerDigest(digest).dataDigest(digest)
                    .connections(1 + random.nextInt(3)).firstBurst(FIRST_BURST_BYTES).build();
            try (IscsiDevice disk = IscsiDevice.open(relay.url(Lunar.TARGET), options)) {
                AtomicBoolean over = new AtomicBoolean();
                Thread cutter = Thread.ofVirtual().start(() -> {
                    try {
                        cutAll(relay, random);
                    } catch (InterruptedException ignored) {
                        // The workload has failed meanwhile.
                    } finally {
                        over.set(true);
                    }
                });
                try {
                    Workload.run(disk, THREADS, PART_BLOCKS, random.nextLong(),
                            () -> !over.get());
                } finally {
                    cutter.interrupt();
                }
            }
            for (int kind : KINDS) {
                assertTrue(relay.cuts(kind) > 0, "no cut at " + Opcode.name(kind));
            }
        }
    }

    /** Cuts at a command before each cut at a login, because a login follows only a loss. */
    private static void cutAll(Relay relay, Random random) throws InterruptedException {
        for (int round = 0; round < 2; round++) {
            for (int kind : KINDS) {
                boolean login = kind == Opcode.LOGIN_REQUEST || kind == Opcode.LOGIN_RESPONSE;
                if (login) {
                    cutOnce(relay, new Relay.Cut(Opcode.SCSI_COMMAND, 3, 0));
                }
                Relay.Cut cut = Relay.random(random, kind);
                cutOnce(relay, login ? new Relay.Cut(kind, 0, cut.part()) : cut);
            }
        }
    }

    private static void cutOnce(Relay relay, Relay.Cut cut) throws InterruptedException {
        relay.cutAt(cut);
        try {
            cut.done().get(CUT_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException | TimeoutException exception) {
            String kind = Opcode.name(cut.opcode());
            throw new IllegalStateException("no " + kind + " to cut at", exception);
        }
    }

    /** Goal: a server that is killed and restarted has all flushed data. */
    @Test
    void killsLoseNoFlushedWrite(@TempDir Path folder) {
        Seed.run(random -> {
            for (String cache : List.of("write-through", "write-back")) {
                Path file = folder.resolve(cache + ".img");
                try (Lunar server = new Lunar(file.toString(), "--size", "8M", "--cache", cache,
                        "--block-size", "512");
                        Relay relay = new Relay(server.port(), false, false);
                        IscsiDevice disk = IscsiDevice.open(relay.url(Lunar.TARGET))) {
                    AtomicBoolean over = new AtomicBoolean();
                    Thread killer = Thread.ofPlatform().start(() -> killSometimes(server, over));
                    Workload.run(disk, THREADS, PART_BLOCKS, random.nextLong(),
                            () -> !over.get());
                    killer.join();
                }
            }
        });
    }

    private static void killSometimes(Lunar server, AtomicBoolean over) {
        try {
            for (int kills = 0; kills < 3; kills++) {
                // Some I/O has to be pending; the amount does not matter.
                TimeUnit.MILLISECONDS.sleep(300);
                server.kill();
                server.start();
            }
        } catch (IOException | InterruptedException failed) {
            throw new IllegalStateException(failed);
        } finally {
            over.set(true);
        }
    }

    /** Goal: blocks beyond 2^32 are stored and unmapped at their addresses. */
    @Test
    void blocksAboveTwoTebibytesAreAddressed(@TempDir Path state) throws Exception {
        Path folder = Files.createTempDirectory(Path.of("/dev/shm"), "lunar-java-");
        Path file = folder.resolve("huge.img");
        try (Lunar server = new Lunar(file.toString(), "--size", "15T", "--block-size", "512",
                "--state", state.toString());
                IscsiDevice disk = IscsiDevice.open(server.url())) {
            assertEquals(15L << 40, disk.geometry().bytes());
            // Several commands, whose range is across a multiple of 2^32.
            long unmapped = (1L << 33) - (1L << 18);
            long count = 1L << 19;
            List<Long> gone = List.of(unmapped, (1L << 33) - 8, 1L << 33, unmapped + count - 8);
            List<Long> kept = List.of(0L, 1L << 18, 1L << 31, (1L << 32) - 8, 1L << 32,
                    unmapped - 8, unmapped + count, (1L << 34) + 5, disk.blockCount() - 8);
            for (long address : kept) {
                disk.write(address, marked(address));
            }
            for (long address : gone) {
                disk.write(address, marked(address));
            }
            disk.flush();
            for (long address : kept) {
                assertBlocks(marked(address), disk, address);
            }
            for (long address : gone) {
                assertBlocks(marked(address), disk, address);
            }
            disk.unmap(unmapped, count);
            for (long address : kept) {
                assertBlocks(marked(address), disk, address);
            }
            for (long address : gone) {
                assertBlocks(new byte[8 * 512], disk, address);
            }
        } finally {
            FileContract.delete(folder);
        }
    }

    private static void assertBlocks(byte[] expected, IscsiDevice disk, long address)
            throws DeviceException {
        byte[] found = new byte[8 * 512];
        disk.read(address, found);
        assertArrayEquals(expected, found, () -> "at block " + address);
    }

    private static byte[] marked(long address) {
        ByteBuffer data = ByteBuffer.allocate(8 * 512);
        while (data.hasRemaining()) {
            data.putLong(address);
        }
        return data.array();
    }

    /** Goal: two programs share a LUN, and each reads the other's writes. */
    @Test
    void twoProgramsShareALun() throws Exception {
        try (Lunar server = new Lunar("mem:4M", "--block-size", "512");
                IscsiDevice disk = IscsiDevice.open(server.url())) {
            disk.write(0, marked(7));
            String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
            Server child = new Server("child is done", List.of(java, "-cp",
                    System.getProperty("java.class.path"), SecondProgram.class.getName(),
                    server.url()));
            AtomicBoolean over = new AtomicBoolean();
            Thread waiter = Thread.ofPlatform().start(() -> {
                try {
                    child.awaitReady();
                    over.set(true);
                } catch (IOException failed) {
                    throw new IllegalStateException(failed);
                }
            });
            Workload.run(disk, 2, 1024, 1, waiter::isAlive);
            waiter.join();
            assertTrue(over.get(), "the second program failed");
            byte[] found = new byte[8 * 512];
            disk.read(SecondProgram.MARK, found);
            assertArrayEquals(marked(SecondProgram.MARK), found);
        }
    }

    /** The work of the child: a workload on its own blocks, and a mark for the parent. */
    static final class SecondProgram {
        static final long MARK = 8000;
        private static final int STEPS = 400;

        private SecondProgram() {
        }

        /** Takes the URL as the only argument. */
        public static void main(String[] arguments) throws Exception {
            try (IscsiDevice disk = IscsiDevice.open(arguments[0])) {
                int[] left = {STEPS};
                Workload own = new Workload(disk, 4096, 1024, 2);
                own.all(() -> left[0]-- > 0);
                disk.write(MARK, marked(MARK));
                disk.flush();
            }
            System.out.println("child is done");
        }
    }

    /**
     * Goal: our server accepts each CHAP algorithm, shows its targets, and refuses a wrong secret.
     */
    @Test
    void chapAlgorithmsAreAccepted(@TempDir Path folder) throws Exception {
        Path ours = Files.writeString(folder.resolve("ours"), "hunter2-of-the-initiator\n");
        Path theirs = Files.writeString(folder.resolve("theirs"), "hunter3-of-the-target");
        try (Lunar server = new Lunar("mem:1M", "--chap-user", "vm", "--chap-secret-file",
                ours.toString(), "--mutual-chap-user", "lunar", "--mutual-chap-secret-file",
                theirs.toString())) {
            for (ChapAlgorithm algorithm : ChapAlgorithm.values()) {
                IscsiOptions options = IscsiOptions.builder().chapUser("vm").chapSecretFile(ours)
                        .mutualChapSecretFile("lunar", theirs).connections(4)
                        .chapAlgorithms(List.of(algorithm)).build();
                try (IscsiDevice disk = IscsiDevice.open(server.url(), options)) {
                    assertEquals(4, disk.connections());
                    disk.write(0, new byte[disk.blockSize()]);
                }
                List<Discovery.Target> targets =
                        Discovery.sendTargets("iscsi://" + server.address(), options);
                assertEquals(Lunar.TARGET, targets.getFirst().name());
            }
            IscsiOptions wrong = IscsiOptions.builder()
                    .chap("vm", "hunter4-of-nobody".getBytes(StandardCharsets.UTF_8)).build();
            DeviceException refused = assertThrows(DeviceException.class,
                    () -> IscsiDevice.open(server.url(), wrong));
            assertEquals(IscsiException.Kind.AUTHENTICATION,
                    IscsiException.in(refused).orElseThrow().kind());
        }
    }
}

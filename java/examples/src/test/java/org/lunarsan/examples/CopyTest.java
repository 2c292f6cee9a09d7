package org.lunarsan.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.initiator.IscsiDevice;

/** The program, as far as it can be tested without a target. */
final class CopyTest {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    private int run(String... arguments) {
        return run(false, IscsiDevice::open, arguments);
    }

    private int run(boolean terminal, Copy.Opener opener, String... arguments) {
        out.reset();
        err.reset();
        return new Copy(new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8), terminal, opener)
                .run(arguments);
    }

    private String printed() {
        return err.toString(StandardCharsets.UTF_8);
    }

    private static AsyncDevice memory(long blocks) throws IOException {
        AsyncDevice disk = AsyncDevice.of(new MemoryDevice(512, blocks));
        disk.open();
        return disk;
    }

    /**
     * Goal: the last line of progress shows 100 %, however fast the copy, on a terminal or not.
     */
    @Test
    void progressEndsAtTheTotal(@TempDir Path folder) throws IOException {
        String url = "iscsi://host/target/0";
        Path file = folder.resolve("file");
        Map<Integer, String> sizes = Map.of(
                0, "0 bytes", 512, "512 bytes", 9 << 9, "4 KiB", (3 << 20) + 7, "3 MiB");
        for (int size : sizes.keySet()) {
            Files.write(file, new byte[size]);
            for (boolean terminal : new boolean[] {false, true}) {
                assertEquals(0, run(terminal, (to, how) -> memory(8 << 11), file.toString(), url));
                assertEquals(terminal, printed().startsWith("\r"), printed());
                // A slow machine shows earlier lines too.
                String last = printed().substring(printed().lastIndexOf('\r') + 1);
                assertTrue(last.startsWith("100 % of " + sizes.get(size) + ", "), printed());
                assertTrue(printed().endsWith(System.lineSeparator()), printed());
            }
        }
        assertEquals(0, run(false, (to, how) -> memory(8 << 11), url, file.toString()));
        assertTrue(printed().startsWith("100 % of 8 MiB, "), printed());
        assertEquals(0, run(true, (to, how) -> memory(8 << 11), "--json", url, file.toString()));
        assertEquals("", printed());
    }

    /** Goal: a failed copy does not show 100 %. */
    @Test
    void progressOfAFailureStaysIncomplete(@TempDir Path folder) throws IOException {
        Path file = Files.write(folder.resolve("file"), new byte[4096]);
        for (boolean terminal : new boolean[] {false, true}) {
            assertEquals(1, run(terminal, (to, how) -> memory(1), file.toString(),
                    "iscsi://host/target/0"));
            assertFalse(printed().contains("%"), printed());
        }
    }

    /** Goal: wrong usage exits with 2 and one line, without repeating a secret. */
    @Test
    void wrongUsageIsReported() {
        String url = "iscsi://host/target/0";
        for (List<String> wrong : List.of(List.<String>of(), List.of("a"), List.of("a", "b"),
                List.of(url, url), List.of("a", url, "c"), List.of("--x", "a", url),
                List.of("--connections", "0", "a", url), List.of("a", url, "--connections"),
                List.of("--protocol-level", "3", "a", url),
                List.of("--protocol-level", "0", "a", url),
                List.of("--mutual-chap-user", "lio", "a", url),
                List.of("a", url, "--mutual-chap-secret-file"),
                List.of("a", "iscsi://host"), List.of("a", "iscsi://u%hunter2@host/target/0"))) {
            assertEquals(2, run(wrong.toArray(String[]::new)), wrong::toString);
            assertEquals(1, err.toString(StandardCharsets.UTF_8).lines().count());
            assertFalse(err.toString(StandardCharsets.UTF_8).contains("hunter2"));
            assertEquals(0, out.size());
        }
    }

    /** Goal: the help is printed to standard output. */
    @Test
    void helpIsGiven() {
        assertEquals(0, run("--help"));
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("example:"));
    }

    /** Goal: a failure exits with 1, and with --json prints one document. */
    @Test
    void failuresAreReported(@TempDir Path folder) {
        String none = folder.resolve("none").toString();
        assertEquals(1, run("--json", none, "iscsi://127.0.0.1:1/target/0"));
        String json = out.toString(StandardCharsets.UTF_8);
        assertTrue(json.startsWith("{\"error\": \"NoSuchFileException") && json.endsWith("}\n"),
                json);
        assertEquals("\"a\\\"\\\\\\u000a\"", Json.text("a\"\\\n"));
    }

    /** Goal: files of uneven sizes are copied completely there and back; blocks after them stay. */
    @Test
    void filesComeBack(@TempDir Path folder) throws IOException {
        Path source = folder.resolve("source");
        Path back = folder.resolve("back");
        for (int size : new int[] {0, 1, 512, 5000, (1 << 20) + 7, 20 << 20, (9 << 20) + 513}) {
            byte[] data = new byte[size];
            new Random(size).nextBytes(data);
            Files.write(source, data);
            try (AsyncDevice disk = AsyncDevice.of(new MemoryDevice(512, 24 << 11))) {
                disk.open();
                byte[] whole = new byte[24 << 20];
                Arrays.fill(whole, (byte) 3);
                disk.write(0, whole);
                System.arraycopy(data, 0, whole, 0, size);
                try (FileChannel file = FileChannel.open(source)) {
                    assertEquals(size, new Copier(file, disk, new Progress(null, false)).toLun());
                }
                try (FileChannel file = FileChannel.open(back, StandardOpenOption.CREATE,
                        StandardOpenOption.WRITE)) {
                    new Copier(file, disk, new Progress(null, false)).toFile();
                }
                assertTrue(Arrays.equals(whole, Files.readAllBytes(back)), "of " + size);
            }
        }
    }

    /** Loses all writes before a flush, the first {@code losses} times. */
    private static final class LosingDevice extends ForwardingDevice {
        private int losses;

        LosingDevice(Device inner, int losses) {
            super(inner);
            this.losses = losses;
        }

        @Override
        public void flush() throws DeviceException {
            if (losses == 0) {
                super.flush();
                return;
            }
            losses--;
            write(0, new byte[(int) blockCount() * blockSize()]);
            throw new PoisonedException("losing", Operation.FLUSH, "its cache is lost", null);
        }
    }

    /**
     * Fault: a session that was lost in the middle failed the copy to a LUN with a write cache. The
     * copy fails if the cache is lost each time.
     */
    @Test
    void writesLostByACacheAreCopiedAgain(@TempDir Path folder) throws IOException {
        byte[] data = new byte[(9 << 20) + 513];
        new Random(1).nextBytes(data);
        Path source = Files.write(folder.resolve("source"), data);
        try (Device memory = new MemoryDevice(512, 24 << 11)) {
            memory.open();
            assertEquals(0, run(false, (to, how) -> AsyncDevice.of(new LosingDevice(memory, 2)),
                    source.toString(), "iscsi://host/target/0"), this::printed);
            memory.open();
            byte[] back = new byte[10 << 20];
            memory.read(0, back);
            assertTrue(Arrays.equals(data, Arrays.copyOf(back, data.length)));
            assertEquals(1, run(false, (to, how) -> AsyncDevice.of(new LosingDevice(memory, 99)),
                    source.toString(), "iscsi://host/target/0"));
            assertTrue(printed().contains("its cache is lost"), printed());
        }
    }
}

package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.AsynchronousCloseException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class FileDeviceTest {
    @TempDir Path folder;

    private static void assertCannotOpen(Device device, String words) {
        DeviceOpenException refusal = assertThrows(DeviceOpenException.class, device::open);
        assertTrue(refusal.getMessage().contains(words), refusal::getMessage);
        assertThrows(DeviceClosedException.class, () -> device.read(0, new byte[0]));
    }

    /** Goal: a file that cannot be opened is refused with a message that says why. */
    @Test
    void saysWhyItCannotBeOpened() throws Exception {
        assertCannotOpen(FileDevice.of(folder.resolve("none"), 512), "no such file");
        assertCannotOpen(FileDevice.of(folder, 512), "directory");
        Path odd = Files.write(folder.resolve("odd"), new byte[513]);
        assertCannotOpen(FileDevice.of(odd, 512), "not a whole number of blocks");
        Path empty = Files.write(folder.resolve("empty"), new byte[0]);
        assertCannotOpen(FileDevice.of(empty, 512), "at least one block");
        Path good = Files.write(folder.resolve("good"), new byte[6144]);
        assertCannotOpen(FileDevice.of(good, 1536), "1536 bytes");
        assertCannotOpen(FileDevice.of(good, 0), "0 bytes");
        assertThrows(DeviceOpenException.class, () -> FileDevice.create(good, 512, 1));
        assertThrows(DeviceOpenException.class,
                () -> FileDevice.create(folder.resolve("new"), 512, Long.MAX_VALUE));
    }

    /** Goal: two devices never have the same file open for writing; two readers may. */
    @Test
    void keepsOthersOut() throws Exception {
        Path path = folder.resolve("disk");
        FileDevice first = FileDevice.create(path, 512, 4);
        first.open();
        assertCannotOpen(FileDevice.of(path, 512), "has it open");
        assertCannotOpen(FileDevice.readOnly(path, 512), "has it open");
        first.close();
        FileDevice second = FileDevice.of(path, 512);
        second.open();
        second.close();
    }

    /** Goal: interrupts in the middle of a call fail no call, and the lock is held after them. */
    @Test
    void survivesInterrupts() throws Exception {
        Path path = folder.resolve("disk");
        try (FileDevice device = FileDevice.create(path, 512, 2048)) {
            device.open();
            AtomicInteger seen = new AtomicInteger();
            AtomicReference<Throwable> failure = new AtomicReference<>();
            Thread victim = Thread.ofPlatform().start(() -> {
                byte[] all = new byte[2048 * 512];
                try {
                    while (seen.get() < 500) {
                        device.write(0, all);
                        device.read(0, all);
                        if (Thread.interrupted()) {
                            seen.incrementAndGet();
                        }
                    }
                } catch (DeviceException thrown) {
                    failure.set(thrown);
                }
            });
            byte[] block = new byte[512];
            while (victim.isAlive()) {
                victim.interrupt();
                device.read(7, block);
            }
            assertNull(failure.get());
            assertCannotOpen(FileDevice.of(path, 512), "has it open");
        }
    }

    /** Goal: of two concurrent flushes, of which the first fails, the second does not succeed. */
    @Test
    void aFailedFlushPoisonsConcurrentFlushes() throws Exception {
        try (FileDevice device = FileDevice.create(folder.resolve("disk"), 512, 4)) {
            device.open();
            CountDownLatch begun = new CountDownLatch(1);
            CountDownLatch proceed = new CountDownLatch(1);
            AtomicInteger calls = new AtomicInteger();
            device.force = file -> {
                if (calls.incrementAndGet() == 1) {
                    begun.countDown();
                    await(proceed);
                    throw new IOException("bad sectors");
                }
                // Like the system, which reports a failure once.
            };
            AtomicReference<Throwable> first = new AtomicReference<>();
            AtomicReference<Throwable> second = new AtomicReference<>();
            Thread one = flush(device, first);
            await(begun);
            Thread other = flush(device, second);
            while (other.isAlive() && other.getState() != Thread.State.WAITING) {
                Thread.onSpinWait();
            }
            proceed.countDown();
            one.join();
            other.join();
            assertEquals(MediumException.class, first.get().getClass());
            assertInstanceOf(PoisonedException.class, second.get());
        }
    }

    private static Thread flush(Device device, AtomicReference<Throwable> failure) {
        return Thread.ofPlatform().start(() -> {
            try {
                device.flush();
            } catch (DeviceException thrown) {
                failure.set(thrown);
            }
        });
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException exception) {
            throw new AssertionError(exception);
        }
    }

    /** Goal: a second opening that is refused leaves the file locked for other processes. */
    @Test
    void aRefusedOpeningDropsNoLock() throws Exception {
        Path path = folder.resolve("disk");
        Path probe = Files.writeString(folder.resolve("Probe.java"), """
                import java.nio.channels.FileChannel;
                import java.nio.file.Path;
                import java.nio.file.StandardOpenOption;
                public class Probe {
                    public static void main(String[] path) throws Exception {
                        FileChannel file =
                                FileChannel.open(Path.of(path[0]), StandardOpenOption.WRITE);
                        System.exit(file.tryLock() == null ? 7 : 8);
                    }
                }
                """);
        try (FileDevice device = FileDevice.create(path, 512, 4)) {
            device.open();
            assertCannotOpen(FileDevice.of(path, 512), "has it open");
            String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
            Process other = new ProcessBuilder(java, probe.toString(), path.toString())
                    .redirectErrorStream(true)
                    .redirectOutput(folder.resolve("words").toFile())
                    .start();
            assertEquals(7, other.waitFor(), () -> "8: it got the lock; " + words());
        }
    }

    private String words() {
        try {
            return Files.readString(folder.resolve("words"));
        } catch (IOException exception) {
            return exception.toString();
        }
    }

    /**
     * Goal: an operation that began before a device was closed does not continue in its next
     * opening.
     */
    @Test
    void operationsEndWithTheirOpening() throws Exception {
        FileDevice device = FileDevice.create(folder.resolve("disk"), 512, 4);
        device.open();
        try {
            CountDownLatch begun = new CountDownLatch(1);
            CountDownLatch proceed = new CountDownLatch(1);
            AtomicInteger calls = new AtomicInteger();
            device.force = file -> {
                if (calls.incrementAndGet() > 1) {
                    return;
                }
                begun.countDown();
                await(proceed);
                throw new AsynchronousCloseException();
            };
            AtomicReference<Throwable> failure = new AtomicReference<>();
            Thread flush = flush(device, failure);
            await(begun);
            device.close();
            device.open();
            proceed.countDown();
            flush.join();
            assertInstanceOf(DeviceClosedException.class, failure.get());
            assertEquals(1, calls.get());
        } finally {
            device.close();
        }
    }

    /** Goal: a device opened for reading refuses writes, and reports that it is read-only. */
    @Test
    void readOnlyRefusesWrites() throws Exception {
        Path path = Files.write(folder.resolve("disk"), new byte[1024]);
        try (FileDevice device = FileDevice.readOnly(path, 512)) {
            device.open();
            assertTrue(device.isReadOnly());
            assertThrows(ReadOnlyDeviceException.class, () -> device.write(0, new byte[512]));
            assertThrows(ReadOnlyDeviceException.class, () -> device.unmap(0, 1));
            assertThrows(OutOfRangeException.class, () -> device.write(2, new byte[512]));
            device.read(1, new byte[512]);
            device.flush();
        }
    }

    /** Goal: a truncated file fails only for the missing blocks. */
    @Test
    void reportsATruncatedFile() throws Exception {
        Path path = folder.resolve("disk");
        try (FileDevice device = FileDevice.create(path, 512, 8)) {
            device.open();
            try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
                file.setLength(4 * 512 + 100);
            }
            device.read(0, new byte[4 * 512]);
            MediumException failure =
                    assertThrows(MediumException.class, () -> device.read(3, new byte[1024]));
            assertEquals(3, failure.address());
            assertEquals(2, failure.blocks());
        }
    }

    /** Goal: a created file has the requested size; its shape is unknown before it is opened. */
    @Test
    void createsFilesOfTheRightSize() throws Exception {
        Path path = folder.resolve("disk");
        FileDevice device = FileDevice.create(path, 4096, 1L << 20);
        assertEquals(4L << 30, Files.size(path));
        assertThrows(IllegalStateException.class, device::blockCount);
        device.open();
        assertEquals(1L << 20, device.blockCount());
        device.close();
        assertEquals(1L << 20, device.blockCount());
    }

    /** Goal: a file that cannot be completed is not left behind, whatever fails. */
    @Test
    void leavesNoPartialNewFile() throws Exception {
        Path path = folder.resolve("disk");
        FileOpener opener = new FileOpener(path, 512, false);
        opener.force = file -> {
            throw new IOException("No space left on device");
        };
        DeviceOpenException full =
                assertThrows(DeviceOpenException.class, () -> opener.create(8));
        assertTrue(full.getMessage().contains("No space left"), full::getMessage);
        assertFalse(Files.exists(path));
        Thread.currentThread().interrupt();
        assertThrows(DeviceOpenException.class, () -> FileDevice.create(path, 512, 8));
        assertTrue(Thread.interrupted(), "the interrupt is the caller's");
        assertFalse(Files.exists(path));
        assertThrows(DeviceOpenException.class, () -> FileDevice.create(path, 513, 8));
        assertFalse(Files.exists(path));
        FileDevice.create(path, 512, 8);
        assertEquals(4096, Files.size(path));
    }

    /** Goal: an existing file stays unchanged, whatever fails. */
    @Test
    void leavesAnExistingFile() throws Exception {
        Path path = Files.writeString(folder.resolve("disk"), "of somebody else");
        assertThrows(DeviceOpenException.class, () -> FileDevice.create(path, 512, 8));
        assertEquals("of somebody else", Files.readString(path));
        Path link = Files.createSymbolicLink(folder.resolve("link"), folder.resolve("none"));
        assertThrows(DeviceOpenException.class, () -> FileDevice.create(link, 512, 8));
        assertTrue(Files.isSymbolicLink(link));
    }
}

package org.lunarsan.bench.part;

import java.io.IOException;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import javax.management.JMException;
import javax.management.ObjectName;
import org.lunarsan.initiator.IscsiDevice;

/**
 * A JVM that opens sessions and reports their memory; arguments: URL and number of sessions. Prints
 * heap, direct memory and resident memory in bytes and threads, for all of them together.
 *
 * <p>Threads: one.
 */
public final class IdleProbe {
    /**
     * Number of sessions opened before the measurement, so that memory needed once per process is
     * already allocated.
     */
    private static final int FIRST = 8;
    private static final int BLOCKS = 8;
    private static final int COLLECTIONS = 4;
    private static final long SETTLE_NANOS = 500_000_000;
    private static final long PAGE_BYTES = 4096;

    private IdleProbe() {
    }

    /**
     * Returns the bytes of all live objects: the used heap as reported includes buffers of threads.
     */
    private static long liveHeapBytes() throws IOException {
        try {
            String histogram = (String) ManagementFactory.getPlatformMBeanServer().invoke(
                    new ObjectName("com.sun.management:type=DiagnosticCommand"),
                    "gcClassHistogram", new Object[] {new String[0]},
                    new String[] {String[].class.getName()});
            String[] total = histogram.substring(histogram.lastIndexOf("Total")).split("\\s+");
            return Long.parseLong(total[2]);
        } catch (JMException refused) {
            throw new IOException("this JVM has no class histogram", refused);
        }
    }

    /** Memory use at one moment. */
    private record Memory(long heap, long direct, long resident, int threads) {
        static Memory now() throws IOException {
            for (int turn = 0; turn < COLLECTIONS; turn++) {
                System.gc();
                // Buffers are freed by a separate thread after a collection.
                LockSupport.parkNanos(SETTLE_NANOS);
            }
            long direct = ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                    .mapToLong(BufferPoolMXBean::getMemoryUsed).sum();
            String[] pages = Files.readString(Path.of("/proc/self/statm")).split(" ");
            return new Memory(liveHeapBytes(), direct, Long.parseLong(pages[1]) * PAGE_BYTES,
                    ManagementFactory.getThreadMXBean().getThreadCount());
        }
    }

    /**
     * Opens sessions, reads once with each, and measures.
     *
     * @param arguments the URL of a LUN, number of sessions
     * @throws IOException when one cannot be opened
     */
    public static void main(String[] arguments) throws IOException {
        List<IscsiDevice> first = opened(arguments[0], FIRST);
        int count = Integer.parseInt(arguments[1]);
        // The first measurement itself allocates memory.
        Memory.now();
        Memory before = Memory.now();
        List<IscsiDevice> devices = opened(arguments[0], count);
        Memory after = Memory.now();
        System.out.printf("%d %d %d %d%n", after.heap() - before.heap(),
                after.direct() - before.direct(), after.resident() - before.resident(),
                after.threads() - before.threads());
        closeAll(devices);
        closeAll(first);
    }

    private static List<IscsiDevice> opened(String url, int count) throws IOException {
        List<IscsiDevice> devices = new ArrayList<>(count);
        for (int number = 0; number < count; number++) {
            IscsiDevice device = IscsiDevice.open(url);
            device.read(0, new byte[BLOCKS * device.blockSize()]);
            devices.add(device);
        }
        return devices;
    }

    private static void closeAll(List<IscsiDevice> devices) {
        devices.forEach(IscsiDevice::close);
    }
}

package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;

/** Garbage produced by reads, and memory kept by an idle session. */
final class FootprintTest {
    private static final int BLOCK = 4096;
    private static final int READS = 3_000;
    /** Bytes per read: about 40 once all code is compiled, some 160 before. */
    private static final long GARBAGE_BYTES_MAX = 300;
    private static final int SESSIONS = 32;
    /** A connection itself keeps 16 KiB: its input buffer and its staging buffer. */
    private static final long DIRECT_BYTES_MAX = 64 << 10;

    /**
     * Goal: a read of 4 KiB produces nearly no garbage, in the caller and in the session's two
     * threads.
     */
    @Test
    void readsLeaveNextToNothing() throws Exception {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            long[] ours = threadsOf(target);
            assertEquals(3, ours.length, "the caller, a reader and a writer");
            ByteBuffer direct = ByteBuffer.allocateDirect(BLOCK);
            byte[] array = new byte[BLOCK];
            for (int warm = 0; warm < 4; warm++) {
                read(disk, direct, array);
            }
            long before = LongStream.of(threads.getThreadAllocatedBytes(ours)).sum();
            read(disk, direct, array);
            long bytes = LongStream.of(threads.getThreadAllocatedBytes(ours)).sum() - before;
            long each = bytes / (2 * READS);
            assertTrue(each <= GARBAGE_BYTES_MAX, () -> each + " bytes for each read");
        }
    }

    private static void read(IscsiDevice disk, ByteBuffer direct, byte[] array) throws Exception {
        for (int number = 0; number < READS; number++) {
            disk.read(8L * (number % 8), direct.clear());
            disk.read(8L * (number % 8), array);
        }
    }

    /** Returns the threads of the only session with a target, and this thread. */
    private static long[] threadsOf(MiniTarget target) {
        LongStream theirs = Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("iscsi " + target.portal()))
                .mapToLong(Thread::threadId);
        return LongStream.concat(theirs, LongStream.of(Thread.currentThread().threadId()))
                .toArray();
    }

    /** Goal: an idle session keeps no large buffer, whatever it transferred before. */
    @Test
    void idleSessionsKeepLittle() throws Exception {
        try (MiniTarget target = new MiniTarget(4096)) {
            List<IscsiDevice> disks = new ArrayList<>();
            try {
                // After the first sessions the chunks shared by all sessions are allocated.
                open(target, disks, 4);
                long before = direct();
                open(target, disks, SESSIONS);
                long each = (direct() - before) / SESSIONS;
                assertTrue(each <= DIRECT_BYTES_MAX, () -> each + " bytes for each session");
            } finally {
                disks.forEach(IscsiDevice::close);
            }
        }
    }

    private static void open(MiniTarget target, List<IscsiDevice> disks, int count)
            throws Exception {
        byte[] much = new byte[1 << 20];
        for (int number = 0; number < count; number++) {
            IscsiDevice disk = IscsiDevice.open(target.url());
            disks.add(disk);
            disk.read(0, much);
            disk.write(0, much);
        }
    }

    private static long direct() {
        return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                .filter(pool -> pool.getName().equals("direct"))
                .mapToLong(BufferPoolMXBean::getMemoryUsed).sum();
    }
}

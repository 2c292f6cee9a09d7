package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceClosedException;

/** Tests with many threads at once. */
abstract class ConcurrencyContract extends RefusalContract {
    private static final int THREADS = 12;
    private static final int STEPS = 60;

    /** Goal: threads with separate blocks see only their own writes. */
    @Test
    void keepsThreadsWithTheirOwnBlocksApart() {
        Seed.run(random -> {
            long seed = random.nextLong();
            int share = (int) (device.blockCount() / THREADS);
            together(THREADS, thread -> {
                Random own = new Random(seed + thread);
                byte[] model = read((long) thread * share, share);
                for (int step = 0; step < STEPS; step++) {
                    int blocks = 1 + own.nextInt(Math.min(share, 16));
                    int first = own.nextInt(share - blocks + 1);
                    byte[] data = bytes(own, blocks);
                    device.write((long) thread * share + first, data);
                    int at = first * device.blockSize();
                    System.arraycopy(data, 0, model, at, data.length);
                    int look = own.nextInt(share - blocks + 1);
                    int from = look * device.blockSize();
                    byte[] expected = Arrays.copyOfRange(model, from, from + data.length);
                    assertHolds((long) thread * share + look, expected);
                }
                assertHolds((long) thread * share, model);
            });
        });
    }

    /**
     * Goal: of overlapping writes every block is one writer's, whole, and all readers see the same.
     */
    @Test
    void overlappingWritesLeaveWholeBlocks() {
        Seed.run(random -> {
            long seed = random.nextLong();
            int contested = 24;
            together(THREADS, thread -> {
                Random own = new Random(seed + thread);
                for (int step = 0; step < STEPS; step++) {
                    int blocks = 1 + own.nextInt(contested);
                    long first = own.nextInt(contested - blocks + 1);
                    device.write(first, filled(1 + thread, blocks));
                    if (own.nextInt(4) == 0) {
                        device.read(first, new byte[blocks * device.blockSize()]);
                    }
                }
            });
            byte[] found = read(0, contested);
            for (int block = 0; block < contested; block++) {
                int at = block * device.blockSize();
                for (int index = 1; index < device.blockSize(); index++) {
                    assertEquals(found[at], found[at + index], "block " + block + " is torn");
                }
                assertTrue(found[at] >= 0 && found[at] <= THREADS);
            }
            assertHolds(0, found);
        });
    }

    /** Goal: data of a write that returned is found by the next read of every other thread. */
    @Test
    void writesAreSeenByOtherThreads() throws Exception {
        AtomicReference<Long> last = new AtomicReference<>(0L);
        AtomicBoolean over = new AtomicBoolean();
        together(4, thread -> {
            if (thread == 0) {
                for (long value = 1; value <= 200; value++) {
                    device.write(5, numbered(value));
                    last.set(value);
                }
                over.set(true);
                return;
            }
            while (!over.get()) {
                long atLeast = last.get();
                long found = number(read(5, 1));
                assertTrue(found >= atLeast, () -> found + " is older than " + atLeast);
                // A virtual thread that never waits would keep the writer from running.
                Thread.yield();
            }
        });
    }

    /** Returns a block that begins with a number below 32768, as two bytes written together. */
    private byte[] numbered(long value) {
        byte[] block = filled(0, 1);
        block[0] = (byte) (value >> 7);
        block[1] = (byte) (value & 0x7F);
        return block;
    }

    private static long number(byte[] block) {
        return (block[0] << 7) + block[1];
    }

    /** Goal: flushes concurrent to writes of many threads disturb none. */
    @Test
    void flushesBesideWrites() throws Exception {
        together(THREADS, thread -> {
            for (int step = 0; step < 8; step++) {
                device.write(thread * 4L, filled(step + 1, 4));
                if (thread % 3 == 0) {
                    device.flush();
                }
                assertHolds(thread * 4L, filled(step + 1, 4));
            }
        });
    }

    /** Goal: an unmap concurrent to writes of other blocks changes only its own blocks. */
    @Test
    void unmapsBesideWrites() throws Exception {
        together(8, thread -> {
            for (int step = 0; step < 20; step++) {
                device.write(thread * 8L, filled(thread + 1, 8));
                device.unmap(thread * 8L + 4, 4);
                assertHolds(thread * 8L, filled(thread + 1, 4));
                if (device.unmapReadsZeroes()) {
                    assertHolds(thread * 8L + 4, filled(0, 4));
                }
            }
        });
    }

    /** Goal: interrupted callers complete their work, keep the interrupt, and affect no other. */
    @Test
    void interruptsHarmNobody() throws Exception {
        together(THREADS, thread -> {
            for (int step = 0; step < STEPS; step++) {
                boolean interrupted = thread % 2 == 0 && step % 3 == 0;
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
                byte[] data = filled(step, 2);
                device.write(thread * 2L, data);
                byte[] found = read(thread * 2L, 2);
                boolean kept = Thread.interrupted();
                assertEquals(interrupted, kept, "the interrupt is the caller's");
                assertArrayEquals(data, found);
            }
            Thread.currentThread().interrupt();
            device.flush();
            assertTrue(Thread.interrupted());
        });
    }

    /** Goal: closing ends every concurrent call, with its work done or as closed. */
    @Test
    void closesBesideCallers() throws Exception {
        CountDownLatch busy = new CountDownLatch(THREADS - 1);
        together(THREADS, thread -> {
            if (thread == 0) {
                busy.await();
                device.close();
                return;
            }
            boolean counted = false;
            try {
                while (true) {
                    device.write(thread, filled(thread, 1));
                    device.read(thread, new byte[device.blockSize()]);
                    if (!counted) {
                        busy.countDown();
                        counted = true;
                    }
                    // A virtual thread that never waits would keep the others from running.
                    Thread.yield();
                }
            } catch (DeviceClosedException expected) {
                assertTrue(counted, "closed before it was");
            }
        });
        device.open();
        device.write(1, filled(1, 1));
        assertHolds(1, filled(1, 1));
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.BLOCK;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.testkit.Seed;

/** Many threads on the same blocks, while members fail and return. */
class MirrorRacesTest {
    private static final int WRITERS = 6;
    private static final int READERS = 3;
    private static final int ROUNDS = 24;
    /** Number of writes of each writer in each round; likewise reads. */
    private static final int WRITES = 20;
    private static final int READS = 60;
    /** First of the contended blocks, around the border of two regions. */
    private static final int FIRST = 120;
    private static final int AREA = 16;
    private static final int LENGTH_MAX = 6;

    /** Clock ticks before the write began and after it returned. */
    private record Write(long begun, long ended) {}

    private record Read(int block, long value, long begun, long ended) {}

    private final AtomicLong clock = new AtomicLong();
    private final AtomicLong written = new AtomicLong();
    private final Map<Long, Write> writes = new ConcurrentHashMap<>();
    private final Map<Integer, ConcurrentLinkedQueue<Long>> byBlock = new ConcurrentHashMap<>();
    private final ConcurrentLinkedQueue<Read> reads = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
    private volatile boolean over;

    private interface Task {
        void run() throws Exception;
    }

    private Thread start(Task task) {
        return Thread.ofPlatform().start(() -> {
            try {
                task.run();
            } catch (Throwable failure) {
                failures.add(failure);
            }
        });
    }

    /**
     * Goal: members end equal; each block read is whole, and is the last write or a pending one.
     */
    @Test
    void readersSeeOldOrNewWhileMembersComeAndGo() {
        Seed.run(random -> {
            List<MemoryDevice> disks = Members.memories(2);
            Members.mirror(disks);
            List<FaultyDevice> members = Members.faulty(disks, random.nextLong());
            try (MirroredDevice pool = MirroredDevice.of(members)) {
                pool.open();
                members.forEach(MirrorRacesTest::delayWrites);
                writes.put(0L, new Write(-1, -1));
                for (int round = 0; round < ROUNDS; round++) {
                    race(random.nextLong(), round, pool, members);
                    assertEquals(List.of(), List.copyOf(failures));
                    // A write that had failed earlier may have left a member out after that.
                    pool.resync().join();
                    assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
                    // Check before later writes overwrite a difference.
                    Members.assertSame(disks);
                }
                read(pool, FIRST, AREA + LENGTH_MAX);
            }
            reads.forEach(this::check);
        });
    }

    /** Runs one round; in every other one a member fails and returns. */
    private void race(
            long seed, int round, MirroredDevice pool, List<FaultyDevice> members)
            throws InterruptedException {
        over = false;
        List<Thread> writers = new ArrayList<>();
        for (int writer = 0; writer < WRITERS; writer++) {
            Random own = new Random(seed + writer);
            long base = (writer + 1L) << 32 | (long) round << 16;
            writers.add(start(() -> {
                for (int step = 0; step < WRITES; step++) {
                    write(pool, FIRST + own.nextInt(AREA), 1 + own.nextInt(LENGTH_MAX),
                            base + step);
                }
            }));
        }
        List<Thread> others = new ArrayList<>();
        for (int reader = 0; reader < READERS; reader++) {
            Random own = new Random(seed - 1 - reader);
            others.add(start(() -> {
                for (int step = 0; step < READS && !over; step++) {
                    read(pool, FIRST + own.nextInt(AREA), 1 + own.nextInt(LENGTH_MAX));
                }
            }));
        }
        if (round % 2 == 1) {
            Random own = new Random(seed);
            others.add(start(() -> failAndReturn(own, pool, members)));
        }
        for (Thread writer : writers) {
            writer.join();
        }
        over = true;
        for (Thread other : others) {
            other.join();
        }
    }

    /** Makes a random member fail in random ways, then copies to it. */
    private void failAndReturn(Random random, MirroredDevice pool, List<FaultyDevice> members)
            throws Exception {
        FaultyDevice member = members.get(random.nextInt(members.size()));
        member.heal();
        member.inject(Fault.of(new Fault.Tear(random.nextInt(3))).on(Operation.WRITE)
                .perMillion(100_000));
        member.inject(Fault.fail().on(Operation.READ).perMillion(50_000));
        delayWrites(member);
        long until = written.get() + WRITERS * WRITES / 2;
        while (written.get() < until && !over && failures.isEmpty()) {
            Thread.yield();
        }
        member.heal();
        delayWrites(member);
        pool.resync().join();
    }

    /** Delays some writes, so that concurrent ones reach the members in any order. */
    private static void delayWrites(FaultyDevice member) {
        member.inject(Fault.of(new Fault.Delay(Duration.ofNanos(100_000)))
                .on(Operation.WRITE).perMillion(300_000));
    }

    private void write(MirroredDevice pool, int first, int blocks, long value) throws Exception {
        ByteBuffer data = ByteBuffer.allocate(blocks * BLOCK);
        while (data.hasRemaining()) {
            data.putLong(value);
        }
        long begun = clock.incrementAndGet();
        writes.put(value, new Write(begun, Long.MAX_VALUE));
        for (int block = first; block < first + blocks; block++) {
            byBlock.computeIfAbsent(block, never -> new ConcurrentLinkedQueue<>()).add(value);
        }
        pool.write(first, data.flip());
        writes.put(value, new Write(begun, clock.incrementAndGet()));
        written.incrementAndGet();
        if (value % 16 == 0) {
            pool.flush();
        }
    }

    private void read(MirroredDevice pool, int first, int blocks) throws Exception {
        long begun = clock.incrementAndGet();
        ByteBuffer found = ByteBuffer.wrap(Members.read(pool, first, blocks));
        long ended = clock.incrementAndGet();
        for (int block = 0; block < blocks; block++) {
            long value = found.getLong(block * BLOCK);
            for (int at = 0; at < BLOCK; at += Long.BYTES) {
                assertEquals(value, found.getLong(block * BLOCK + at), "a torn block");
            }
            reads.add(new Read(first + block, value, begun, ended));
        }
    }

    private void check(Read read) {
        Write seen = writes.get(read.value);
        assertTrue(seen != null && seen.begun < read.ended, () -> "from nowhere: " + read);
        for (long other : byBlock.getOrDefault(read.block, new ConcurrentLinkedQueue<>())) {
            Write later = writes.get(other);
            assertTrue(later.begun < seen.ended || later.ended > read.begun,
                    () -> read + " is older than write " + other + " " + later + ", of " + seen);
        }
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.BLOCK;
import static org.lunarsan.pool.Members.BLOCKS;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.testkit.PowerCutDevice;
import org.lunarsan.device.testkit.Seed;

/** Random faults and power cuts against a model, by seed. */
class MirrorPropertiesTest {
    private static final int ROUNDS = 60;
    private static final int STEPS = 120;

    /** Possible values of each block; a single one once it is known. */
    private final List<Set<Integer>> model = new ArrayList<>();
    private int next;

    private void reset() {
        model.clear();
        for (int block = 0; block < BLOCKS; block++) {
            model.add(new HashSet<>(Set.of(0)));
        }
        next = 0;
    }

    /** Goal: with randomly failing members, reads return only the last write. */
    @Test
    void failuresLoseNothing() {
        Seed.run(random -> {
            for (int round = 0; round < ROUNDS; round++) {
                reset();
                failing(random);
            }
        });
    }

    private void failing(Random random) throws Exception {
        List<MemoryDevice> disks = Members.memories(2 + random.nextInt(2));
        Members.mirror(disks);
        List<FaultyDevice> members = Members.faulty(disks, random.nextLong());
        MirroredDevice pool = MirroredDevice.of(members);
        pool.open();
        inject(random, members);
        for (int step = 0; step < STEPS; step++) {
            step(random, pool);
            if (pool.status().health() == PoolStatus.Health.FAILED) {
                // No label could be written on any member: as after any failure, open the pool
                // again.
                members.forEach(FaultyDevice::heal);
                Members.drop(pool);
                pool.open();
                inject(random, members);
            }
            if (random.nextInt(20) == 0) {
                members.forEach(FaultyDevice::heal);
                inject(random, members);
                pool.resync().handle((done, failed) -> null).join();
            }
        }
        members.forEach(FaultyDevice::heal);
        Members.drop(pool);
        // A current member has all data, and any other one is not read.
        pool = MirroredDevice.of(disks);
        pool.open();
        checkAll(pool);
        pool.resync().join();
        pool.copies().join();
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        checkAll(pool);
        pool.close();
        Members.assertSame(disks);
    }

    private static void inject(Random random, List<FaultyDevice> members) {
        for (FaultyDevice member : members) {
            member.inject(Fault.fail().on(Operation.READ).perMillion(30_000));
            member.inject(Fault.of(new Fault.Tear(random.nextInt(3))).on(Operation.WRITE)
                    .perMillion(10_000));
            member.inject(Fault.fail().on(Operation.FLUSH).perMillion(5_000));
        }
    }

    private void step(Random random, MirroredDevice pool) throws DeviceException {
        int blocks = 1 + random.nextInt(20);
        int first = random.nextInt(BLOCKS - blocks + 1);
        try {
            switch (random.nextInt(10)) {
                case 0 -> pool.flush();
                case 1, 2, 3, 4 -> check(pool, first, blocks);
                default -> write(pool, first, blocks);
            }
        } catch (DeviceException exception) {
            // All members failed at once: the result of the write is unknown, and determined below.
            String words = exception.getMessage();
            assertTrue(words.contains("a member failed") || words.contains("no member"), words);
        }
    }

    private void write(MirroredDevice pool, int first, int blocks) throws DeviceException {
        int value = ++next;
        byte[] data = new byte[blocks * BLOCK];
        for (int block = 0; block < blocks; block++) {
            ByteBuffer.wrap(data).putInt(block * BLOCK, value);
            ByteBuffer.wrap(data).putInt((block + 1) * BLOCK - 4, value);
            // Until the write is acknowledged, each block has the old or the new value.
            model.get(first + block).add(value);
        }
        pool.write(first, data);
        for (int block = 0; block < blocks; block++) {
            model.set(first + block, new HashSet<>(Set.of(value)));
        }
    }

    private void check(MirroredDevice pool, int first, int blocks) throws DeviceException {
        byte[] found = Members.read(pool, first, blocks);
        for (int block = 0; block < blocks; block++) {
            ByteBuffer bytes = ByteBuffer.wrap(found, block * BLOCK, BLOCK);
            int value = bytes.getInt(block * BLOCK);
            Set<Integer> allowed = model.get(first + block);
            assertTrue(allowed.contains(value), "block " + (first + block) + " holds write "
                    + value + ", not one of " + allowed);
            assertEquals(value, bytes.getInt((block + 1) * BLOCK - 4), "a torn block");
            // From now on the value is known.
            model.set(first + block, new HashSet<>(Set.of(value)));
        }
    }

    private void checkAll(MirroredDevice pool) throws DeviceException {
        check(pool, 0, BLOCKS);
    }

    /** Goal: after a power cut of all members, flushed data is there, and the members agree. */
    @Test
    void powerCutsLoseNoFlushedWrite() {
        Seed.run(random -> {
            for (int round = 0; round < ROUNDS; round++) {
                powerCut(random);
            }
        });
    }

    private void powerCut(Random random) throws Exception {
        List<MemoryDevice> disks = Members.memories(2 + random.nextInt(2));
        Members.mirror(disks);
        List<PowerCutDevice> members = disks.stream().map(PowerCutDevice::new).toList();
        MirroredDevice pool = MirroredDevice.of(members);
        pool.open();
        byte[] flushed = new byte[BLOCKS * BLOCK];
        byte[] written = flushed.clone();
        boolean[] since = new boolean[BLOCKS];
        int steps = 1 + random.nextInt(STEPS);
        for (int step = 0; step < steps; step++) {
            if (random.nextInt(12) == 0) {
                pool.flush();
                System.arraycopy(written, 0, flushed, 0, written.length);
                Arrays.fill(since, false);
                continue;
            }
            int blocks = 1 + random.nextInt(20);
            int first = random.nextInt(BLOCKS - blocks + 1);
            byte[] data = new byte[blocks * BLOCK];
            random.nextBytes(data);
            pool.write(first, data);
            System.arraycopy(data, 0, written, first * BLOCK, data.length);
            Arrays.fill(since, first, first + blocks, true);
        }
        for (PowerCutDevice member : members) {
            member.cut(random);
        }
        List<MemoryDevice> left = Members.snapshots(disks);
        try (MirroredDevice after = MirroredDevice.of(left)) {
            after.open();
            byte[] before = Members.read(after, 0, BLOCKS);
            after.copies().join();
            assertArrayEquals(before, Members.read(after, 0, BLOCKS), "reads of a block differ");
            assertEquals(PoolStatus.Health.HEALTHY, after.status().health());
            for (int block = 0; block < BLOCKS; block++) {
                int at = block * BLOCK;
                boolean same = Arrays.equals(before, at, at + BLOCK, flushed, at, at + BLOCK);
                assertTrue(since[block] || same, "block " + block + " was flushed");
            }
        }
        Members.assertSame(left);
        Members.drop(pool);
    }

    /** Goal: concurrent writes to the same blocks leave all members equal. */
    @Test
    void overlappingWritesLeaveMembersTheSame() {
        Seed.run(random -> {
            List<MemoryDevice> disks = Members.memories(3);
            Members.mirror(disks);
            List<FaultyDevice> members = Members.faulty(disks, random.nextLong());
            try (MirroredDevice pool = MirroredDevice.of(members)) {
                pool.open();
                long seed = random.nextLong();
                List<Thread> threads = new ArrayList<>();
                List<Throwable> failures = new ArrayList<>();
                for (int thread = 0; thread < 10; thread++) {
                    int value = thread;
                    threads.add(Thread.ofVirtual().start(() -> {
                        Random own = new Random(seed + value);
                        try {
                            for (int step = 0; step < 100; step++) {
                                int blocks = 1 + own.nextInt(8);
                                pool.write(own.nextInt(16), Members.filled(value, blocks));
                            }
                        } catch (DeviceException failure) {
                            synchronized (failures) {
                                failures.add(failure);
                            }
                        }
                    }));
                }
                for (Thread thread : threads) {
                    thread.join();
                }
                assertEquals(List.of(), failures);
            }
            Members.assertSame(disks);
        });
    }
}

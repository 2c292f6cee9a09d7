package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.BLOCK;
import static org.lunarsan.pool.Members.BLOCKS;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.testkit.PowerCutDevice;
import org.lunarsan.device.testkit.Seed;

/** Power cuts before each write to a member, from the first of a run to its last. */
class MirrorPowerCutTest {
    private static final int ROUNDS = 8;
    private static final int PHASE_STEPS = 10;
    private static final int DATA = PoolLayout.FRONT_BYTES / BLOCK;
    /** Blocks around the border of two regions, and a few in others. */
    private static final int[] ADDRESSES = {120, 126, 130, 400, 1000};

    /** The power of all members. */
    private static final class Power {
        final List<PowerCutDevice> members = new ArrayList<>();
        final long seed;
        /** Number of writes until the cut. */
        long left;
        boolean cut;
        long seen;

        Power(long seed, long writes) {
            this.seed = seed;
            left = writes;
        }

        synchronized void write() throws DeviceException {
            seen++;
            if (left-- == 0) {
                cut = true;
                for (int index = 0; index < members.size(); index++) {
                    members.get(index).cut(new Random(seed + seen * members.size() + index));
                }
            }
        }

        synchronized boolean isCut() {
            return cut;
        }

        ForwardingDevice plug(MemoryDevice disk) {
            PowerCutDevice member = new PowerCutDevice(disk);
            members.add(member);
            return new ForwardingDevice(member) {
                @Override
                public void write(long address, ByteBuffer buffer) throws DeviceException {
                    Power.this.write();
                    super.write(address, buffer);
                }
            };
        }
    }

    /** Possible values of each block: the last flushed one, and those written since. */
    private final Map<Long, Set<Integer>> allowed = new TreeMap<>();
    private final Map<Long, Integer> last = new TreeMap<>();
    private int next;

    /** Goal: after a power cut at any write, flushed data is there, and the members agree. */
    @Test
    void everyPowerCutKeepsFlushedWrites() {
        Seed.run(random -> {
            for (int round = 0; round < ROUNDS; round++) {
                cutEverywhere(random.nextLong());
            }
        });
    }

    private void cutEverywhere(long seed) throws Exception {
        long writes = run(seed, Long.MAX_VALUE);
        assertTrue(writes > 30, "writes of a run: " + writes);
        for (long cut = 0; cut < writes; cut++) {
            try {
                run(seed, cut);
            } catch (AssertionError failure) {
                throw new AssertionError("cut before write " + cut + " of " + writes + ": "
                        + failure.getMessage(), failure);
            }
        }
    }

    /** Runs until the power cut, and checks the remaining data. Returns the number of writes. */
    private long run(long seed, long cut) throws Exception {
        allowed.clear();
        last.clear();
        next = 0;
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        Power power = new Power(seed, cut);
        List<FaultyDevice> members =
                Members.faulty(disks.stream().map(power::plug).toList(), seed);
        MirroredDevice pool = MirroredDevice.of(members);
        try {
            work(new Random(seed), pool, members);
            pool.close();
        } catch (DeviceException | CompletionException failure) {
            assertTrue(power.isCut(), () -> "without a cut: " + failure);
        }
        // Closing ends the pool's background work before the disks are checked.
        Members.drop(pool);
        check(Members.snapshots(disks));
        return power.seen;
    }

    /** Writes; lets one member miss some writes and copies to it; writes again. */
    private void work(Random random, MirroredDevice pool, List<FaultyDevice> members)
            throws DeviceException {
        pool.open();
        steps(random, pool);
        FaultyDevice bad = members.get(random.nextInt(members.size()));
        bad.inject(Fault.fail().on(Operation.WRITE).at(DATA, BLOCKS));
        steps(random, pool);
        bad.heal();
        pool.resync().join();
        steps(random, pool);
    }

    private void steps(Random random, MirroredDevice pool) throws DeviceException {
        for (int step = 0; step < PHASE_STEPS; step++) {
            if (random.nextInt(3) == 0) {
                pool.flush();
                last.forEach((block, value) -> allowed.put(block, new HashSet<>(Set.of(value))));
            } else {
                write(random, pool);
            }
        }
    }

    private void write(Random random, MirroredDevice pool) throws DeviceException {
        int first = ADDRESSES[random.nextInt(ADDRESSES.length)] + random.nextInt(4);
        int blocks = 1 + random.nextInt(6);
        int value = ++next;
        ByteBuffer data = ByteBuffer.allocate(blocks * BLOCK);
        while (data.hasRemaining()) {
            data.putInt(value);
        }
        for (long block = first; block < first + blocks; block++) {
            allowed.computeIfAbsent(block, never -> new HashSet<>(Set.of(0))).add(value);
        }
        pool.write(first, data.flip());
        for (long block = first; block < first + blocks; block++) {
            last.put(block, value);
        }
    }

    private void check(List<MemoryDevice> left) throws DeviceException {
        try (MirroredDevice after = MirroredDevice.of(left)) {
            after.open();
            byte[] before = Members.read(after, 0, BLOCKS);
            allowed.forEach((block, values) -> {
                int value = ByteBuffer.wrap(before).getInt((int) (block * BLOCK));
                assertTrue(values.contains(value), () -> "block " + block + " holds write "
                        + value + ", not one of " + values);
            });
            after.resync().join();
            after.copies().join();
            assertEquals(PoolStatus.Health.HEALTHY, after.status().health());
            assertArrayEquals(before, Members.read(after, 0, BLOCKS), "reads of a block differ");
        }
        Members.assertSame(left);
    }
}

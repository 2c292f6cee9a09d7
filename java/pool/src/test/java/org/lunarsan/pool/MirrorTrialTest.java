package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.BLOCK;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.testkit.Seed;

/**
 * Mirrors under faults of several members at once: power cuts of members with a volatile cache,
 * hanging and failing members, and concurrent copies. Every read is checked against a ledger of the
 * possible values of each block: after a successful flush no data is lost or stale, unless the loss
 * was reported.
 *
 * <p>Run with {@code -Dlunar.trial.writes=600000} for a long trial; {@code -Dlunar.seed=…} repeats
 * the random choices of one, though not the order of its threads.
 */
@Tag("trial")
class MirrorTrialTest {
    private static final int WRITES = Integer.getInteger("lunar.trial.writes", 6000);
    private static final int WRITES_OF_A_ROUND = 500;
    /** Around borders of regions of 128 blocks, and in most regions. */
    private static final int[] ADDRESSES = {0, 3, 126, 127, 255, 300, 511, 600, 767, 900, 1020};
    private static final int LENGTH_MAX = 3;
    private static final long BOUND_MILLIS = 5;
    private static final Duration HANG = Duration.ofMillis(4 * BOUND_MILLIS);
    private static final int FLUSHES_MAX = 20;

    private int value;
    private int faults;
    private int lossesReported;
    private int flushesFailed;
    private int openings;

    /** One pool, from its creation to its last check. */
    private final class Round {
        private final Random random;
        private final List<MemoryDevice> disks;
        private final List<VolatileDevice> caches;
        private final List<FaultyDevice> members;
        private final BlockLedger ledger = new BlockLedger(Members.BLOCKS);
        private MirroredDevice pool;
        private Device top;
        private long lossesSeen;

        Round(Random random) throws DeviceException {
            this.random = random;
            disks = Members.memories(2 + random.nextInt(2));
            Members.mirror(disks);
            caches = disks.stream().map(VolatileDevice::new).toList();
            members = Members.faulty(caches, random.nextLong());
            open();
        }

        private void open() throws DeviceException {
            pool = MirroredDevice.of(
                    members, MirrorOptions.DEFAULT.withMemberMillisMax(BOUND_MILLIS));
            top = random.nextBoolean() ? new CachedDevice(pool, 64 * BLOCK) : pool;
            top.open();
            lossesSeen = top.losses();
            openings++;
        }

        void run(int writes) throws Exception {
            for (int done = 0; done < writes; ) {
                noteLosses();
                switch (random.nextInt(20)) {
                    case 0, 1 -> flush();
                    case 2, 3, 4, 5, 6 -> read();
                    case 7 -> fault();
                    case 8 -> recover();
                    default -> {
                        write();
                        done++;
                    }
                }
            }
            end();
        }

        /** Records reported losses: all data that was not flushed may be gone. */
        private void noteLosses() {
            long losses = top.losses();
            if (losses != lossesSeen) {
                lossesSeen = losses;
                lossesReported++;
                ledger.lost();
            }
        }

        private void write() {
            int first = ADDRESSES[random.nextInt(ADDRESSES.length)];
            int blocks = 1 + random.nextInt(LENGTH_MAX);
            int written = ++value;
            ByteBuffer data = ByteBuffer.allocate(blocks * BLOCK);
            while (data.hasRemaining()) {
                data.putInt(written);
            }
            boolean done = false;
            try {
                top.write(first, data.flip());
                done = true;
            } catch (DeviceException failed) {
                // The write may have written any of its blocks.
            }
            for (int block = first; block < first + blocks; block++) {
                ledger.wrote(block, written, done);
            }
        }

        private void read() {
            int first = ADDRESSES[random.nextInt(ADDRESSES.length)];
            check(first, 1 + random.nextInt(LENGTH_MAX));
        }

        private void check(int first, int blocks) {
            byte[] found = new byte[blocks * BLOCK];
            try {
                top.read(first, found);
            } catch (DeviceException failed) {
                return;
            }
            noteLosses();
            ledger.note("read " + first + "+" + blocks + " " + pool.status().members().stream()
                    .map(member -> member.state() + "/" + member.regionsToCopy()).toList());
            ByteBuffer words = ByteBuffer.wrap(found);
            for (int block = 0; block < blocks; block++) {
                int at = block * BLOCK;
                int one = words.getInt(at);
                for (int word = at; word < at + BLOCK; word += Integer.BYTES) {
                    assertEquals(one, words.getInt(word), "a torn block");
                }
                ledger.read(first + block, one);
            }
        }

        private boolean flush() {
            try {
                top.flush();
            } catch (DeviceException failed) {
                flushesFailed++;
                lossesSeen = top.losses();
                ledger.lost();
                return false;
            }
            ledger.flushed();
            return true;
        }

        /** Injects a fault into one member or several. */
        private void fault() throws DeviceException {
            int first = random.nextInt(members.size());
            int count = 1 + random.nextInt(members.size());
            int kind = random.nextInt(9);
            Operation[] operations = {Operation.WRITE, Operation.READ, Operation.FLUSH};
            Operation operation = operations[random.nextInt(operations.length)];
            for (int index = 0; index < count; index++) {
                int member = (first + index) % members.size();
                faults++;
                ledger.note("fault " + kind + " " + operation + " of " + members.get(member));
                switch (kind) {
                    case 0, 1, 2, 3 -> caches.get(member).cutPower(random, 1 + random.nextInt(3));
                    case 4 -> members.get(member).inject(Fault.fail().on(operation).times(1));
                    case 5 -> members.get(member).inject(
                            Fault.of(new Fault.Fail(DisconnectedException::new)).on(operation)
                                    .times(1));
                    case 6 -> members.get(member).inject(
                            Fault.of(new Fault.Tear(1)).on(Operation.WRITE).times(1));
                    case 7 -> members.get(member).inject(
                            Fault.of(new Fault.Delay(HANG)).on(operation).times(1));
                    default -> kind = mixed(member);
                }
            }
        }

        /** Injects another fault for the next member: one fails while another loses power. */
        private int mixed(int member) {
            members.get(member).inject(Fault.fail().on(Operation.WRITE).times(1));
            return random.nextInt(8);
        }

        /** Heals members, and copies to them; sometimes waits for the copies. */
        private void recover() throws DeviceException {
            members.forEach(FaultyDevice::heal);
            ledger.note("recover " + pool.status().members().stream()
                    .map(member -> member.state() + "/" + member.regionsToCopy()).toList());
            if (pool.status().health() == PoolStatus.Health.FAILED) {
                reopen();
            } else if (random.nextBoolean()) {
                join();
            } else {
                pool.resync();
            }
        }

        private void join() throws DeviceException {
            try {
                pool.resync().join();
            } catch (CompletionException failed) {
                // A member failed during the copy.
            }
        }

        /**
         * Reopens the pool. Closing is no flush for callers: data that was not flushed may be gone.
         */
        private void reopen() throws DeviceException {
            try {
                top.close();
            } catch (DeviceException failure) {
                // The exception lists what could not be flushed, and what the next opening copies.
            }
            ledger.lost();
            open();
            ledger.note("opened " + pool.status().members().stream()
                    .map(member -> member.state() + "/" + member.regionsToCopy()).toList());
        }

        private void end() throws Exception {
            members.forEach(FaultyDevice::heal);
            int flushes = 0;
            while (!flush()) {
                assertTrue(++flushes < FLUSHES_MAX, "no flush succeeds any more");
                members.forEach(FaultyDevice::heal);
                if (pool.status().health() == PoolStatus.Health.FAILED) {
                    reopen();
                }
            }
            check(0, Members.BLOCKS);
            for (int tries = 0; pool.status().health() != PoolStatus.Health.HEALTHY; tries++) {
                assertTrue(tries < FLUSHES_MAX, () -> "not healthy: " + pool.status());
                join();
                pool.copies().exceptionally(failure -> null).join();
            }
            check(0, Members.BLOCKS);
            flush();
            top.close();
            Members.assertSame(disks);
            open();
            pool.copies().join();
            check(0, Members.BLOCKS);
            top.close();
        }
    }

    /** Goal: see the class. */
    @Test
    void noFlushedWriteIsLostUnreported() {
        Seed.run(random -> {
            System.out.println("mirror trial: seed " + Seed.get() + ", " + WRITES + " writes");
            for (int done = 0; done < WRITES; done += WRITES_OF_A_ROUND) {
                new Round(new Random(random.nextLong())).run(WRITES_OF_A_ROUND);
            }
        });
        System.out.println("mirror trial: " + value + " writes, " + faults + " faults, "
                + lossesReported + " losses counted, " + flushesFailed + " flushes failed, "
                + openings + " openings");
        assertTrue(faults > 0 && flushesFailed > 0);
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.testkit.Seed;

/** Transfer of a pool's data to its members: without copies, threads or growing limits. */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class StripeTransferTest {
    private static final int BLOCK = Members.BLOCK;
    private static final int BLOCKS = 16 << 10;
    private static final int WIDE = StripeTransfer.DIRECT_BYTES_MIN / BLOCK;
    private static final int NARROW = 8;

    /**
     * Completes transfers only in batches: when {@code batch} transfers wait, all of them are done.
     */
    private static final class Batching extends ForwardingDevice implements AsyncDevice {
        final List<ByteBuffer> given = new ArrayList<>();
        final AtomicInteger blocking = new AtomicInteger();
        private final List<Runnable> waiting = new ArrayList<>();
        private volatile int batch = 1;

        Batching(Device inner) {
            super(inner);
        }

        void answerAfter(int transfers) {
            given.clear();
            blocking.set(0);
            batch = transfers;
        }

        private interface Work {
            void run() throws DeviceException;
        }

        private synchronized CompletableFuture<Void> begin(ByteBuffer buffer, Work work) {
            CompletableFuture<Void> done = new CompletableFuture<>();
            given.add(buffer);
            waiting.add(() -> {
                try {
                    work.run();
                    done.complete(null);
                } catch (DeviceException failure) {
                    done.completeExceptionally(failure);
                }
            });
            if (waiting.size() >= batch) {
                waiting.forEach(Runnable::run);
                waiting.clear();
            }
            return done;
        }

        @Override
        public void read(long address, ByteBuffer buffer) throws DeviceException {
            blocking.incrementAndGet();
            super.read(address, buffer);
        }

        @Override
        public void write(long address, ByteBuffer buffer) throws DeviceException {
            blocking.incrementAndGet();
            super.write(address, buffer);
        }

        @Override
        public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
            return begin(buffer, () -> inner().read(address, buffer));
        }

        @Override
        public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
            return begin(buffer, () -> inner().write(address, buffer));
        }

        @Override
        public CompletableFuture<Void> flushAsync() {
            throw new AssertionError("not used");
        }

        @Override
        public CompletableFuture<Void> unmapAsync(long address, long blocks) {
            throw new AssertionError("not used");
        }
    }

    private static List<MemoryDevice> disks() {
        return List.of(
                Members.memory("disk0", BLOCK, BLOCKS), Members.memory("disk1", BLOCK, BLOCKS));
    }

    private static byte[] bytes(Random random, int blocks) {
        byte[] bytes = new byte[blocks * BLOCK];
        random.nextBytes(bytes);
        return bytes;
    }

    /** Goal: all stripes of a write or read are pending at once, in the caller's own memory. */
    @Test
    void writesToAllMembersFromTheCallersMemory() {
        Seed.run(random -> {
            List<Batching> members = disks().stream().map(Batching::new).toList();
            StripedDevice.create(members, WIDE);
            try (StripedDevice pool = StripedDevice.of(members)) {
                pool.open();
                byte[] data = bytes(random, 64 * WIDE);
                // A member answers only when it has all: sending one after the other would wait for
                // ever.
                members.forEach(member -> member.answerAfter(32));
                pool.write(WIDE, data);
                for (Batching member : members) {
                    assertEquals(32, member.given.size());
                    member.given.forEach(piece -> assertSame(data, piece.array()));
                }
                members.forEach(member -> member.answerAfter(32));
                byte[] found = new byte[data.length];
                pool.read(WIDE, found);
                assertArrayEquals(data, found);
                for (Batching member : members) {
                    member.given.forEach(piece -> assertSame(found, piece.array()));
                    assertEquals(0, member.blocking.get());
                }
            }
        });
    }

    /** Goal: narrow stripes are gathered into a few long transfers. */
    @Test
    void gathersNarrowStripes() {
        Seed.run(random -> {
            List<Batching> members = disks().stream().map(Batching::new).toList();
            StripedDevice.create(members, NARROW);
            try (StripedDevice pool = StripedDevice.of(members)) {
                pool.open();
                byte[] data = bytes(random, 8 << 10);
                members.forEach(member -> member.answerAfter(1));
                pool.write(3, data);
                byte[] found = new byte[data.length];
                pool.read(3, found);
                assertArrayEquals(data, found);
                for (Batching member : members) {
                    assertTrue(member.given.size() <= 6, "transfers: " + member.given.size());
                }
            }
        });
    }

    /** Goal: members with only blocking calls transfer any stripe and any run. */
    @Test
    void movesAnyRun() {
        Seed.run(random -> {
            for (int stripe : new int[] {1, 3, NARROW, WIDE - 1, WIDE, WIDE + 1, 1000}) {
                List<MemoryDevice> members = disks();
                StripedDevice.create(members, stripe);
                try (StripedDevice pool = StripedDevice.of(members)) {
                    pool.open();
                    byte[] model = bytes(random, (int) pool.blockCount());
                    pool.write(0, model);
                    for (int step = 0; step < 30; step++) {
                        int blocks = random.nextInt(1 << random.nextInt(14));
                        int first = random.nextInt((int) pool.blockCount() - blocks);
                        byte[] some = bytes(random, blocks);
                        pool.write(first, some);
                        System.arraycopy(some, 0, model, first * BLOCK, some.length);
                    }
                    byte[] found = new byte[model.length];
                    pool.read(0, ByteBuffer.wrap(found));
                    assertArrayEquals(model, found, "stripes of " + stripe);
                }
            }
        });
    }

    /** Goal: a failure names the pool's blocks, moves no position, and leaks no buffer. */
    @Test
    void failuresReleaseTheBuffers() throws Exception {
        for (int stripe : new int[] {NARROW, WIDE}) {
            for (boolean async : new boolean[] {false, true}) {
                List<FaultyDevice> faulty = Members.faulty(disks(), 1);
                List<Device> members = new ArrayList<>(faulty);
                members.replaceAll(member -> async ? AsyncDevice.of(member) : member);
                StripedDevice.create(members, stripe);
                try (StripedDevice pool = StripedDevice.of(members)) {
                    pool.open();
                    ByteBuffer data = ByteBuffer.allocate(8 * WIDE * BLOCK);
                    faulty.get(1).inject(Fault.fail());
                    for (int step = 0; step < 40; step++) {
                        MediumException failure =
                                assertThrows(MediumException.class, () -> pool.write(5, data));
                        assertEquals(5, failure.address());
                        assertTrue(failure.getMessage().contains("disk1"), failure::getMessage);
                        assertThrows(MediumException.class, () -> pool.read(5, data));
                        assertEquals(0, data.position());
                    }
                    faulty.get(1).heal();
                    pool.write(5, data);
                    assertEquals(0, data.remaining());
                }
            }
        }
    }

    /** Goal: a mirror gives each member the caller's memory too, and waits for all at once. */
    @Test
    void mirrorsTheCallersMemory() throws Exception {
        List<Batching> members = disks().stream().map(Batching::new).toList();
        Members.mirror(members);
        try (MirroredDevice pool = MirroredDevice.of(members)) {
            pool.open();
            pool.write(0, new byte[BLOCK]);
            members.forEach(member -> member.answerAfter(1));
            byte[] data = Members.filled(3, 100);
            pool.write(0, data);
            for (Batching member : members) {
                assertEquals(1, member.given.size());
                assertSame(data, member.given.getFirst().array());
                assertEquals(0, member.blocking.get());
            }
        }
    }

    /** Goal: a member that cannot be closed is reported, and does not block closing. */
    @Test
    void closesBesideAMemberThatHangs() throws Exception {
        CountDownLatch free = new CountDownLatch(1);
        List<Device> members = new ArrayList<>(disks());
        StripedDevice.create(members, WIDE);
        members.set(0, new ForwardingDevice(members.get(0)) {
            @Override
            public void close() throws DeviceException {
                super.close();
                try {
                    free.await();
                } catch (InterruptedException exception) {
                    throw new IllegalStateException(exception);
                }
            }
        });
        StripedDevice pool = StripedDevice.of(members);
        pool.closeWait = Duration.ofMillis(50);
        pool.open();
        DeviceException thrown = assertThrows(DeviceException.class, pool::close);
        assertEquals(Operation.CLOSE, thrown.operation());
        assertTrue(thrown.getMessage().contains("disk0"), thrown::getMessage);
        free.countDown();
    }
}

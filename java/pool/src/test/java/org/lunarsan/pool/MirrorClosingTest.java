package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Closing a mirror while members do not answer. */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorClosingTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;

    private final List<MemoryDevice> disks = Members.memories(2);

    @BeforeEach
    void create() throws Exception {
        Members.mirror(disks);
    }

    private static MirroredDevice opened(List<? extends Device> members) throws DeviceException {
        // Without a time limit: a hanging member is still there when the pool is closed.
        MirroredDevice pool =
                MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
        // Time enough for members that answer, on a busy machine.
        pool.closeWait = Duration.ofSeconds(3);
        pool.open();
        return pool;
    }

    private void assertMarkedAndTheSame() throws DeviceException {
        try (MirroredDevice again = MirroredDevice.of(disks)) {
            again.open();
            assertTrue(again.status().dirtyRegions() > 0, "the marks are there");
            again.copies().join();
        }
        Members.assertSame(disks);
    }

    /** Goal: a member that hangs in the last flush does not block closing, which reports it. */
    @Test
    void closesBesideAFlushThatHangs() throws Exception {
        for (int bad = 0; bad < 2; bad++) {
            List<FaultyDevice> members = Members.faulty(disks, 1);
            MirroredDevice pool = opened(members);
            pool.write(0, filled(1, 1));
            members.get(bad).inject(Fault.of(new Fault.Hang()).on(Operation.FLUSH).times(1));
            DeviceException failure = assertThrows(DeviceException.class, pool::close);
            assertEquals(Operation.CLOSE, failure.operation());
            assertTrue(failure.getMessage().contains("1 marked region"), failure::getMessage);
            assertTrue(failure.getMessage().contains("disk" + bad), failure::getMessage);
            assertMarkedAndTheSame();
        }
    }

    /** Goal: the same for a member that hangs in a flush of a caller, or in a write. */
    @Test
    void closesBesideACallThatHangs() throws Exception {
        for (Operation hanging : List.of(Operation.FLUSH, Operation.WRITE)) {
            List<FaultyDevice> members = Members.faulty(disks, 1);
            MirroredDevice pool = opened(members);
            pool.write(0, filled(1, 1));
            members.get(1).inject(Fault.of(new Fault.Hang()).on(hanging).times(1));
            AsyncDevice async = AsyncDevice.of(pool);
            CompletableFuture<Void> call = hanging == Operation.FLUSH
                    ? async.flushAsync()
                    : async.writeAsync(0, ByteBuffer.wrap(filled(2, 1)));
            members.get(1).awaitHanging(1);
            DeviceException failure = assertThrows(DeviceException.class, pool::close);
            assertTrue(failure.getMessage().contains("1 marked region"), failure::getMessage);
            CompletionException failed = assertThrows(CompletionException.class, call::join);
            assertInstanceOf(DeviceClosedException.class, failed.getCause());
            assertMarkedAndTheSame();
        }
    }

    /** A device that blocks at one call until the test releases it, whatever else is called. */
    private static final class Stuck extends ForwardingDevice {
        final CountDownLatch entered = new CountDownLatch(1);
        final CountDownLatch free = new CountDownLatch(1);
        private volatile Operation at;
        private volatile long dataWrites;

        Stuck(Device inner) {
            super(inner);
        }

        private void meet(Operation operation) {
            if (at == operation) {
                at = null;
                entered.countDown();
                try {
                    free.await();
                } catch (InterruptedException exception) {
                    throw new IllegalStateException(exception);
                }
            }
        }

        @Override
        public void write(long address, ByteBuffer buffer) throws DeviceException {
            if (address >= DATA && address < DATA + Members.BLOCKS) {
                dataWrites++;
            }
            super.write(address, buffer);
        }

        @Override
        public void flush() throws DeviceException {
            meet(Operation.FLUSH);
            super.flush();
        }

        @Override
        public void close() throws DeviceException {
            super.close();
            meet(Operation.CLOSE);
        }
    }

    /** Goal: a member that hangs while closing is reported, and the others are closed. */
    @Test
    void closesBesideAMemberThatCannotBeClosed() throws Exception {
        List<Stuck> members = disks.stream().map(Stuck::new).toList();
        MirroredDevice pool = opened(members);
        members.get(0).at = Operation.CLOSE;
        DeviceException failure = assertThrows(DeviceException.class, pool::close);
        assertTrue(failure.getMessage().contains("disk0"), failure::getMessage);
        members.get(0).free.countDown();
        assertThrows(DeviceClosedException.class, () -> disks.get(1).read(0, new byte[512]));
        pool.close();
    }

    /** Goal: a call that hung while the pool was closed sends nothing to reopened members. */
    @Test
    void sendsNothingAfterClosing() throws Exception {
        List<Stuck> members = disks.stream().map(Stuck::new).toList();
        MirroredDevice pool = opened(members);
        members.get(0).at = Operation.FLUSH;
        CompletableFuture<Void> write =
                AsyncDevice.of(pool).writeAsync(0, ByteBuffer.wrap(filled(2, 1)));
        members.get(0).entered.await();
        assertThrows(DeviceException.class, pool::close);
        MirroredDevice again = MirroredDevice.of(members);
        again.open();
        again.copies().join();
        long[] before = {members.get(0).dataWrites, members.get(1).dataWrites};
        members.get(0).free.countDown();
        CompletionException failed = assertThrows(CompletionException.class, write::join);
        assertInstanceOf(DeviceClosedException.class, failed.getCause());
        assertEquals(before[0], members.get(0).dataWrites);
        assertEquals(before[1], members.get(1).dataWrites);
        assertEquals(0, Members.read(again, 0, 1)[0]);
        again.close();
    }
}

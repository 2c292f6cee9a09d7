package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.ChangedException;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Members that fail at the same time, or in ways that no device reports. */
class MirrorFailuresTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;

    private final List<MemoryDevice> disks = Members.memories(2);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    /** Without a time limit: a hanging member hangs until the test continues. */
    private final MirroredDevice pool =
            MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
    private final AsyncDevice async = AsyncDevice.of(pool);

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        pool.open();
        pool.write(0, filled(1, Members.BLOCKS));
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
    }


    private static boolean failed(CompletableFuture<Void> request) {
        return request.handle((done, thrown) -> thrown != null).join();
    }

    private void failWrites(int member, long block) {
        members.get(member).inject(Fault.fail().on(Operation.WRITE).at(DATA + block, 1).times(1));
    }

    private void hang(Operation operation) {
        members.get(0).inject(Fault.of(new Fault.Hang()).on(operation).times(1));
    }

    private static Fault changed(Operation operation) {
        return Fault.of(new Fault.Fail(ChangedException::new)).on(operation);
    }

    /**
     * Goal: a member that was replaced by another device is left out, and the pool continues
     * without it.
     */
    @Test
    void leavesOutAReplacedMember() throws Exception {
        members.get(0).inject(changed(Operation.READ));
        for (int step = 0; step < 30; step++) {
            assertEquals(1, Members.read(pool, 0, 1)[0]);
        }
        assertEquals(MemberState.STALE, pool.status().members().get(0).state());
        pool.write(0, filled(2, 1));
        assertEquals(2, Members.read(pool, 0, 1)[0]);
        members.get(1).inject(changed(Operation.WRITE).at(DATA, 1));
        ChangedException last =
                assertThrows(ChangedException.class, () -> pool.write(0, filled(3, 1)));
        assertEquals(pool.name(), last.device());
    }

    /**
     * Goal: a striped pool, which cannot continue without a member, reports the kind of its
     * failure.
     */
    @Test
    void stripesReportAReplacedMember() throws Exception {
        List<FaultyDevice> parts = Members.faulty(Members.memories(2), 1);
        StripedDevice.create(parts, 8);
        try (StripedDevice stripes = StripedDevice.of(parts)) {
            stripes.open();
            parts.get(1).inject(changed(Operation.READ));
            ChangedException reported =
                    assertThrows(ChangedException.class, () -> Members.read(stripes, 0, 16));
            assertEquals(stripes.name(), reported.device());
        }
    }

    /** Goal: two writes that fail on different members are not both acknowledged. */
    @Test
    void acknowledgesNoWriteThatNoMemberHas() throws Exception {
        hang(Operation.WRITE);
        failWrites(1, 300);
        CompletableFuture<Void> second = async.writeAsync(300, ByteBuffer.wrap(filled(2, 1)));
        members.get(0).awaitHanging(1);
        failWrites(0, 1);
        CompletableFuture<Void> first = async.writeAsync(1, ByteBuffer.wrap(filled(2, 1)));
        awaitFired(0, 2);
        members.get(0).release();
        boolean firstFailed = failed(first);
        assertTrue(firstFailed != failed(second), "one of them is on a stale member only");
        assertEquals(2, Members.read(pool, firstFailed ? 300 : 1, 1)[0], "acknowledged");
    }

    /** Goal: a flush that failed on the only remaining member is not acknowledged. */
    @Test
    void acknowledgesNoFlushThatNoMemberDid() throws Exception {
        hang(Operation.FLUSH);
        members.get(1).inject(Fault.fail().on(Operation.FLUSH).times(1));
        CompletableFuture<Void> flush = async.flushAsync();
        members.get(0).awaitHanging(1);
        // Otherwise the flush of the write's mark could be the one that fails.
        awaitFired(1, 1);
        failWrites(0, 1);
        CompletableFuture<Void> write = async.writeAsync(1, ByteBuffer.wrap(filled(2, 1)));
        awaitFired(0, 2);
        members.get(1).heal();
        members.get(0).release();
        boolean writeFailed = failed(write);
        assertTrue(writeFailed != failed(flush), "one member is left, that failed one of them");
    }

    /** Goal: closing keeps the mark of a write that one member has and another has not. */
    @Test
    void keepsTheMarkOfAWriteCutOffByClosing() throws Exception {
        pool.flush();
        pool.flush();
        members.get(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(DATA, 1).times(1));
        failWrites(0, 0);
        CompletableFuture<Void> write = async.writeAsync(0, ByteBuffer.wrap(filled(2, 1)));
        members.get(1).awaitHanging(1);
        CompletableFuture<Void> close = CompletableFuture.runAsync(() -> {
            try {
                pool.close();
            } catch (DeviceException failure) {
                throw new CompletionException(failure);
            }
        });
        while (isOpen()) {
            Thread.onSpinWait();
        }
        awaitFired(0, 1);
        members.get(1).release();
        assertTrue(failed(write), "the pool was closed before any label recorded the write");
        // The members differ, and no label records it: closing reports it.
        assertThrows(CompletionException.class, close::join);
        try (MirroredDevice again = MirroredDevice.of(disks)) {
            again.open();
            again.copies().join();
        }
        Members.assertSame(disks);
    }

    /** Goal: a replacement device stays open, even if the replaced one cannot be closed. */
    @Test
    void replacesAMemberThatCannotBeClosed() throws Exception {
        List<MemoryDevice> two = Members.memories(2);
        Device stuck = new ForwardingDevice(two.get(0)) {
            private boolean reported;

            @Override
            public void write(long address, ByteBuffer buffer) throws DeviceException {
                throw new DeviceException(name(), Operation.WRITE, "it is stuck", null);
            }

            @Override
            public void close() throws DeviceException {
                super.close();
                if (!reported) {
                    reported = true;
                    throw new DeviceException(name(), Operation.CLOSE, "it is stuck", null);
                }
            }
        };
        Members.mirror(two);
        try (MirroredDevice mirror = MirroredDevice.of(List.of(stuck, two.get(1)))) {
            mirror.open();
            mirror.write(0, filled(3, 1));
            MemoryDevice fresh = Members.memory("fresh", Members.BLOCK, Members.BLOCKS);
            assertThrows(DeviceException.class, () -> mirror.replace(0, fresh));
            mirror.resync().join();
            assertEquals(PoolStatus.Health.HEALTHY, mirror.status().health());
        }
    }

    private boolean isOpen() throws DeviceException {
        try {
            pool.unmap(0, 0);
            return true;
        } catch (DeviceClosedException closed) {
            return false;
        }
    }

    private void awaitFired(int member, long count) {
        while (members.get(member).fired() < count) {
            Thread.onSpinWait();
        }
    }

    /** A device with a defect. */
    private static final class Defect extends ForwardingDevice {
        private volatile Throwable next;

        Defect(Device inner) {
            super(inner);
        }

        @Override
        public void write(long address, ByteBuffer buffer) throws DeviceException {
            switch (next) {
                case RuntimeException thrown -> throw thrown;
                case Error thrown -> throw thrown;
                case null, default -> super.write(address, buffer);
            }
        }
    }

    /** Goal: a member that throws an unexpected exception has missed the write, and is left out. */
    @Test
    void leavesOutAMemberThatThrowsAnything() throws Exception {
        for (Throwable thrown : List.of(
                new OutOfMemoryError("Cannot reserve direct buffer memory"),
                new IllegalStateException("a defect"))) {
            for (int bad = 0; bad < 2; bad++) {
                List<Defect> defects = Members.memories(2).stream().map(Defect::new).toList();
                Members.mirror(defects);
                try (MirroredDevice mirror = MirroredDevice.of(defects)) {
                    mirror.open();
                    mirror.write(0, filled(1, 1));
                    defects.get(bad).next = thrown;
                    mirror.write(0, filled(2, 1));
                    MemberStatus left = mirror.status().members().get(bad);
                    assertEquals(MemberState.STALE, left.state());
                    assertTrue(left.lastFailure().contains(thrown.getMessage()), left::toString);
                    assertEquals(2, Members.read(mirror, 0, 1)[0]);
                }
            }
        }
    }
}

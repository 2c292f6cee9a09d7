package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.ReadOnlyDeviceException;

/** Mirrors with read-only members, after a power cut during a write. */
class ReadOnlyMirrorTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    /** A block in a marked region that differs between the members. */
    private static final int TORN = 100;
    /** A block in an unmarked region. */
    private static final int QUIET = 900;

    private final AtomicLong changes = new AtomicLong();
    /** State after the power cut: the first disk has the write, the second has not. */
    private List<MemoryDevice> disks;

    @BeforeEach
    void cutInTheMiddleOfAWrite() throws Exception {
        List<MemoryDevice> whole = Members.memories(2);
        Members.mirror(whole);
        List<FaultyDevice> members = Members.faulty(whole, 1);
        try (MirroredDevice pool = MirroredDevice.of(members)) {
            pool.open();
            pool.write(0, filled(1, Members.BLOCKS));
            pool.flush();
            pool.flush();
            members.get(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE)
                    .at(DATA + TORN, 1).times(1));
            CompletableFuture<Void> write =
                    AsyncDevice.of(pool).writeAsync(TORN, ByteBuffer.wrap(filled(2, 1)));
            members.get(1).awaitHanging(1);
            while (Members.read(whole.get(0), DATA + TORN, 1)[0] != 2) {
                Thread.onSpinWait();
            }
            disks = Members.snapshots(whole);
            members.get(1).release();
            write.join();
        }
    }

    /** Returns a read-only device that counts attempted writes; flushes are not counted. */
    private Device readOnly(Device inner) {
        return counting(inner, true);
    }

    private Device counting(Device inner, boolean readOnly) {
        return new ForwardingDevice(inner) {
            @Override
            public boolean isReadOnly() {
                return readOnly;
            }

            @Override
            public void write(long address, ByteBuffer buffer) throws DeviceException {
                changes.incrementAndGet();
                if (readOnly) {
                    throw new ReadOnlyDeviceException(
                            name(), Operation.WRITE, address, 0, "it is read-only", null);
                }
                super.write(address, buffer);
            }
        };
    }

    /**
     * Goal: the pool opens for reading, returns one member's version of marked regions, writes
     * nothing.
     */
    @Test
    void readsMarkedRegionsFromOneMember() throws Exception {
        for (int kind = 1; kind < 4; kind++) {
            List<Device> members = new ArrayList<>();
            for (int index = 0; index < 2; index++) {
                members.add(counting(disks.get(index), (kind >> index & 1) != 0));
            }
            try (MirroredDevice pool = MirroredDevice.of(members)) {
                pool.open();
                pool.copies().join();
                assertTrue(pool.isReadOnly());
                for (int step = 0; step < 50; step++) {
                    assertEquals(2, Members.read(pool, TORN, 1)[0]);
                    assertEquals(1, Members.read(pool, QUIET, 1)[0]);
                }
                assertEquals(1, pool.status().dirtyRegions());
                assertEquals(PoolStatus.Health.DEGRADED, pool.status().health());
                pool.flush();
                assertThrows(ReadOnlyDeviceException.class, () -> pool.write(0, filled(3, 1)));
                CompletionException refused =
                        assertThrows(CompletionException.class, () -> pool.resync().join());
                assertInstanceOf(ReadOnlyDeviceException.class, refused.getCause());
                assertThrows(ReadOnlyDeviceException.class, () -> pool.replace(
                        1, Members.memory("new", Members.BLOCK, Members.BLOCKS)));
            }
            assertEquals(0, changes.get(), "writes tried");
        }
        // Nothing was copied: the next opening with write access does it, with the same result.
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            assertEquals(2, Members.read(pool, TORN, 1)[0]);
            pool.copies().join();
            assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        }
        Members.assertSame(disks);
    }

    /** Goal: a read never falls back to the other member in a marked region, only elsewhere. */
    @Test
    void neverMixesVersions() throws Exception {
        FaultyDevice first = new FaultyDevice(readOnly(disks.get(0)), 1);
        try (MirroredDevice pool =
                MirroredDevice.of(List.of(first, readOnly(disks.get(1))))) {
            pool.open();
            first.inject(Fault.fail().on(Operation.READ).at(DATA, Members.BLOCKS));
            for (int step = 0; step < 20; step++) {
                assertEquals(1, Members.read(pool, QUIET, 1)[0]);
                MediumException failure = assertThrows(
                        MediumException.class, () -> pool.read(TORN, new byte[512]));
                assertEquals(TORN, failure.address());
                assertTrue(failure.getMessage().contains("disk0"), failure::getMessage);
            }
            assertEquals(MemberState.CURRENT, pool.status().members().get(0).state());
            first.heal();
            assertEquals(2, Members.read(pool, TORN, 1)[0]);
        }
        assertEquals(0, changes.get(), "writes tried");
    }

    /** Goal: reading without a member does not make it stale, since it missed nothing. */
    @Test
    void opensDegradedWithoutWriting() throws Exception {
        try (MirroredDevice pool =
                MirroredDevice.ofDegraded(List.of(readOnly(disks.get(1))))) {
            pool.open();
            assertEquals(1, Members.read(pool, QUIET, 1)[0]);
        }
        assertEquals(0, changes.get(), "writes tried");
        try (MirroredDevice pool = MirroredDevice.of(disks)) {
            pool.open();
            pool.copies().join();
            assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        }
    }
}

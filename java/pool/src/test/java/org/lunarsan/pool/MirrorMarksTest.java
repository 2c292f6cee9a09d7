package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Marks set before writes, and failures to set them. */
class MirrorMarksTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;

    private final List<MemoryDevice> disks = Members.memories(2);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    private final MirroredDevice pool = MirroredDevice.of(members);

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        pool.open();
        pool.write(0, filled(1, Members.BLOCKS));
        pool.flush();
        pool.flush();
        assertEquals(0, pool.status().dirtyRegions());
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
    }

    private void failPages(FaultyDevice member) {
        member.inject(Fault.fail().on(Operation.WRITE).at(DATA / 16, DATA / 8));
    }

    private static Fault bad(Operation operation, int block) {
        return Fault.fail().on(operation).at(DATA + block, 1);
    }

    /**
     * Goal: a block is rewritten only in a marked region, so that a power cut during it is
     * repaired.
     */
    @Test
    void marksRepairedRegions() throws Exception {
        int block = 700;
        FaultyDevice second = members.get(1);
        second.inject(bad(Operation.READ, block).times(1));
        second.inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(DATA + block, 1).times(1));
        CompletableFuture<Void> read;
        do {
            read = AsyncDevice.of(pool).readAsync(block, ByteBuffer.allocate(Members.BLOCK));
            while (!read.isDone() && second.fired() < 2) {
                Thread.onSpinWait();
            }
        } while (second.fired() < 2);
        List<MemoryDevice> killed = Members.snapshots(disks);
        second.release();
        read.join();
        try (MemoryDevice half = killed.get(1)) {
            // The write had begun: the content of the block is unknown.
            half.open();
            half.write(DATA + block, filled(9, 1));
        }
        try (MirroredDevice after = MirroredDevice.of(killed)) {
            after.open();
            assertEquals(1, after.status().dirtyRegions());
            assertEquals(1, Members.read(after, block, 1)[0]);
            after.copies().join();
        }
        Members.assertSame(killed);
    }

    /** Goal: a read that has its data succeeds, also if the repair and all labels fail. */
    @Test
    void readsThoughTheRepairFails() throws Exception {
        for (FaultyDevice member : members) {
            member.inject(Fault.fail().on(Operation.WRITE));
        }
        members.get(0).inject(bad(Operation.READ, 5));
        for (int step = 0; members.get(0).fired() == 0; step++) {
            ByteBuffer found = ByteBuffer.allocate(Members.BLOCK);
            pool.read(5, found);
            assertEquals(0, found.remaining());
            assertEquals(1, found.get(0));
        }
    }

    /** Goal: a write that no member could mark is neither acknowledged nor sent. */
    @Test
    void acknowledgesNoWriteWithoutAMark() throws Exception {
        members.forEach(this::failPages);
        MediumException failure =
                assertThrows(MediumException.class, () -> pool.write(300, filled(2, 1)));
        assertEquals(300, failure.address());
        assertEquals(pool.name(), failure.device());
        assertTrue(failure.getMessage().contains("disk"), failure::getMessage);
        for (MemoryDevice disk : disks) {
            assertEquals(1, Members.read(disk, DATA + 300, 1)[0], "it was not sent");
        }
        assertEquals(PoolStatus.Health.DEGRADED, pool.status().health());
        // The last member has no other one to differ from, but the write is tried all the same.
        MediumException again =
                assertThrows(MediumException.class, () -> pool.write(300, filled(2, 1)));
        assertEquals(300, again.address());
        members.forEach(FaultyDevice::heal);
        pool.write(300, filled(3, 1));
        assertEquals(3, Members.read(pool, 300, 1)[0]);
        pool.resync().join();
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: if no label can be written either, the exception names the unwritten blocks. */
    @Test
    void namesTheBlocksWhenNoLabelCanBeWritten() throws Exception {
        for (FaultyDevice member : members) {
            member.inject(Fault.fail().on(Operation.WRITE).at(0, DATA));
        }
        for (int step = 0; step < 2; step++) {
            MediumException failure =
                    assertThrows(MediumException.class, () -> pool.write(300, filled(2, 1)));
            assertEquals(300, failure.address());
            assertEquals(pool.name(), failure.device());
        }
        assertEquals(PoolStatus.Health.FAILED, pool.status().health());
        for (MemoryDevice disk : disks) {
            assertEquals(1, Members.read(disk, DATA + 300, 1)[0], "it was not sent");
        }
    }

    /** Goal: a member that cannot be marked is left out; the marked write reaches the others. */
    @Test
    void leavesOutMembersThatCannotBeMarked() throws Exception {
        failPages(members.get(1));
        pool.write(300, filled(2, 1));
        assertEquals(MemberState.STALE, pool.status().members().get(1).state());
        assertEquals(1, pool.status().dirtyRegions());
        assertEquals(1, Members.read(disks.get(1), DATA + 300, 1)[0], "it was not sent there");
        assertEquals(2, Members.read(pool, 300, 1)[0]);
    }

    /** Goal: blocks that only one, failing member has return an error and never old data. */
    @Test
    void servesNoStaleDataForBlocksOfOneMember() throws Exception {
        members.get(1).inject(bad(Operation.WRITE, 40).times(1));
        pool.write(40, filled(2, 1));
        assertEquals(MemberState.STALE, pool.status().members().get(1).state());
        members.get(0).inject(bad(Operation.READ, 40));
        for (int step = 0; step < 5; step++) {
            MediumException failure =
                    assertThrows(MediumException.class, () -> pool.read(40, new byte[512]));
            assertEquals(40, failure.address());
            assertEquals(pool.name(), failure.device());
            String words = failure.getMessage();
            assertTrue(words.contains("disk0") && words.contains("" + (DATA + 40)), words);
        }
        // A copy of the remaining data does not make the member current either.
        assertThrows(RuntimeException.class, () -> pool.resync().join());
        assertEquals(MemberState.STALE, pool.status().members().get(1).state());
        members.get(0).heal();
        assertEquals(2, Members.read(pool, 40, 1)[0]);
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** A mirror of disks that differ everywhere, as after a power cut while all was written. */
class NewMirrorTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    private static final int REGION = (64 << 10) / Members.BLOCK;

    private final List<MemoryDevice> disks = Members.memories(3);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    private final MirroredDevice pool = MirroredDevice.of(members);

    @BeforeEach
    void create() throws Exception {
        for (int index = 0; index < disks.size(); index++) {
            try (MemoryDevice disk = disks.get(index)) {
                disk.open();
                disk.write(DATA, Members.filled(index + 1, Members.BLOCKS));
            }
        }
        MirroredDevice.create(disks);
    }

    @AfterEach
    void close() throws Exception {
        pool.close();
    }

    /** Goal: a new mirror copies its first member to the others, whatever they hold. */
    @Test
    void copiesTheFirstToTheOthers() throws Exception {
        pool.open();
        assertEquals(1, Members.read(pool, Members.BLOCKS - 1, 1)[0]);
        pool.copies().join();
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        assertEquals(1, Members.read(pool, 7, 1)[0]);
        pool.close();
        Members.assertSame(disks);
    }

    /** Goal: what was copied is marked until a flush that began after the copy. */
    @Test
    void keepsMarksUntilTheCopyIsDurable() throws Exception {
        pool.open();
        pool.copies().join();
        pool.flush();
        assertEquals(pool.status().regions(), pool.status().dirtyRegions());
        pool.flush();
        assertEquals(0, pool.status().dirtyRegions());
    }

    /** Goal: members that lose the one they are copied from, at different places, end the same. */
    @Test
    void agreesWhenTheSourceIsLost() throws Exception {
        members.get(1).inject(hangAt(2));
        members.get(2).inject(hangAt(4));
        pool.open();
        members.get(1).awaitHanging(1);
        members.get(2).awaitHanging(1);
        members.get(0).inject(Fault.fail().on(Operation.READ));
        members.get(0).inject(Fault.fail().on(Operation.WRITE));
        members.get(1).release();
        members.get(2).release();
        pool.copies().join();
        assertOthersAreTheSame();
    }

    /** Goal: nor do they differ when a write finds out that the source is lost. */
    @Test
    void agreesWhenAWriteLeavesTheSourceOut() throws Exception {
        members.get(1).inject(hangAt(2));
        members.get(2).inject(hangAt(4));
        pool.open();
        members.get(1).awaitHanging(1);
        members.get(2).awaitHanging(1);
        members.get(0).inject(Fault.fail().on(Operation.WRITE));
        CompletableFuture<Void> write = AsyncDevice.of(pool)
                .writeAsync(Members.BLOCKS - 1, ByteBuffer.wrap(Members.filled(9, 1)));
        while (members.get(0).fired() == 0) {
            Thread.onSpinWait();
        }
        members.get(1).release();
        members.get(2).release();
        write.join();
        pool.copies().join();
        assertEquals(9, Members.read(pool, Members.BLOCKS - 1, 1)[0]);
        assertOthersAreTheSame();
    }

    private void assertOthersAreTheSame() throws Exception {
        assertEquals(MemberState.STALE, pool.status().members().get(0).state());
        assertEquals(MemberState.CURRENT, pool.status().members().get(1).state());
        assertEquals(MemberState.CURRENT, pool.status().members().get(2).state());
        assertEquals(1, Members.read(pool, 3 * REGION, 1)[0], "one of them had it from the first");
        pool.close();
        List<MemoryDevice> left = new ArrayList<>(disks);
        left.removeFirst();
        Members.assertSame(left);
    }

    private static Fault hangAt(int region) {
        return Fault.of(new Fault.Hang())
                .on(Operation.WRITE).at(DATA + (long) region * REGION, 1).times(1);
    }
}

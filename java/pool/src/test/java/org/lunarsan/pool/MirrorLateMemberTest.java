package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Members that do not answer while another one does. */
@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorLateMemberTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;
    private static final long BOUND_MILLIS = 100;

    private final List<MemoryDevice> disks = Members.memories(2);
    private final List<FaultyDevice> members = Members.faulty(disks, 1);
    private final MirroredDevice pool = MirroredDevice.of(
            members, MirrorOptions.DEFAULT.withMemberMillisMax(BOUND_MILLIS));

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        pool.open();
        pool.write(0, filled(1, Members.BLOCKS));
        pool.flush();
    }

    @AfterEach
    void close() throws Exception {
        members.forEach(FaultyDevice::release);
        pool.close();
    }

    private void hang(int member, Operation operation) {
        members.get(member).inject(Fault.of(new Fault.Hang()).on(operation).times(1));
    }

    private void assertLeftOut(int member) {
        MemberStatus status = pool.status().members().get(member);
        assertEquals(MemberState.STALE, status.state(), status::toString);
        assertEquals("disk" + member + ": ", status.lastFailure().substring(0, 7));
    }

    /** Releases the member, which becomes current automatically, with all writes made since. */
    private void assertComesBack(int member) throws Exception {
        members.get(member).release();
        pool.copies().join();
        assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        pool.close();
        Members.assertSame(disks);
        pool.open();
    }

    /**
     * Fault: a member that did not answer delayed every write until its own timeout: 60 s over
     * iSCSI.
     */
    @Test
    void aWriteContinuesWithoutAHangingMember() throws Exception {
        for (int late = 0; late < 2; late++) {
            hang(late, Operation.WRITE);
            pool.write(5, filled(2, 3));
            assertLeftOut(late);
            pool.write(5, filled(3, 3));
            pool.flush();
            assertArrayEquals(filled(3, 3), Members.read(pool, 5, 3));
            assertComesBack(late);
            assertArrayEquals(filled(3, 3), Members.read(pool, 5, 3));
        }
    }

    /** Fault: the same for every flush. */
    @Test
    void aFlushContinuesWithoutAHangingMember() throws Exception {
        for (int late = 0; late < 2; late++) {
            pool.write(5, filled(2, 3));
            hang(late, Operation.FLUSH);
            pool.flush();
            assertLeftOut(late);
            pool.write(5, filled(3, 3));
            assertComesBack(late);
        }
    }

    /** Fault: the same for every read that tried the member first. */
    @Test
    void aReadContinuesWithoutAHangingMember() throws Exception {
        for (int late = 0; late < 2; late++) {
            hang(late, Operation.READ);
            while (members.get(late).fired() == late / 2) {
                assertArrayEquals(filled(1, 3), Members.read(pool, 5, 3));
            }
            assertLeftOut(late);
            assertComesBack(late);
        }
    }

    /** Goal: data of a late read is not written into any caller's memory. */
    @Test
    void aLateReadLeavesTheCallersMemoryAlone() throws Exception {
        hang(0, Operation.READ);
        byte[] mine = new byte[Members.BLOCK];
        while (members.get(0).fired() == 0) {
            pool.read(5, mine);
        }
        Arrays.fill(mine, (byte) 9);
        assertComesBack(0);
        assertArrayEquals(filled(9, 1), mine);
    }

    /** Goal: while no member answers, the mirror waits for them. */
    @Test
    void waitsWhileNoMemberAnswers() throws Exception {
        for (Operation operation : List.of(Operation.WRITE, Operation.READ, Operation.FLUSH)) {
            hang(0, operation);
            hang(1, operation);
            AsyncDevice async = AsyncDevice.of(pool);
            ByteBuffer block = ByteBuffer.wrap(filled(1, 1));
            CompletableFuture<Void> call = switch (operation) {
                case WRITE -> async.writeAsync(5, block);
                case READ -> async.readAsync(5, block);
                default -> async.flushAsync();
            };
            members.get(0).awaitHanging(1);
            members.get(1).awaitHanging(1);
            // Longer than a time limit that ignored the other members.
            assertThrows(TimeoutException.class,
                    () -> call.get(3 * BOUND_MILLIS, TimeUnit.MILLISECONDS));
            members.forEach(FaultyDevice::release);
            call.join();
            assertEquals(PoolStatus.Health.HEALTHY, pool.status().health());
        }
    }

    /** Goal: a member that is late again while it is copied to becomes current afterwards. */
    @Test
    void aMemberLateTwiceIsRecovered() throws Exception {
        hang(1, Operation.WRITE);
        pool.write(5, filled(2, 1));
        hang(1, Operation.WRITE);
        members.get(1).release();
        members.get(1).awaitHanging(1);
        pool.write(900, filled(3, 1));
        assertComesBack(1);
    }

    /** Goal: closing ends the recovery of a member that never answers. */
    @Test
    void closesBesideARecovery() throws Exception {
        members.get(1).inject(Fault.of(new Fault.Hang()).on(Operation.WRITE).at(DATA, 1).times(1));
        pool.write(0, filled(2, 1));
        assertLeftOut(1);
        pool.close();
        pool.open();
        pool.resync().join();
        assertEquals(2, Members.read(pool, 0, 1)[0]);
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.lunarsan.pool.Members.filled;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.TransferFuture;

/** Data that a late member writes after the caller got its buffer back. */
@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class MirrorLateBuffersTest {
    private static final byte FOREIGN = 0x66;
    /** The first block of data on a member. */
    private static final long DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;

    /** Records the addresses at which a foreign byte was written to the disk. */
    private static final class Watching extends ForwardingDevice {
        final Set<Long> foreign = ConcurrentHashMap.newKeySet();

        Watching(Device inner) {
            super(inner);
        }

        @Override
        public void write(long address, ByteBuffer buffer) throws DeviceException {
            // Labels before and after the data, and intent pages, have random bytes.
            if (address >= DATA && address < DATA + Members.BLOCKS) {
                for (int at = buffer.position(); at < buffer.limit(); at++) {
                    if (buffer.get(at) == FOREIGN) {
                        foreign.add(address);
                    }
                }
            }
            super.write(address, buffer);
        }
    }

    /** Writes from its caller's buffer, in a thread, until the buffer is taken back. */
    private static final class Lending extends ForwardingDevice implements AsyncDevice {
        Lending(Device inner) {
            super(inner);
        }

        @Override
        public CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer) {
            Lent lent = new Lent(buffer);
            Thread.ofVirtual().start(() -> lent.write(address));
            return lent;
        }

        private final class Lent extends TransferFuture {
            private final byte[] data;
            private final int at;
            private final int bytes;
            private volatile ByteBuffer own;

            Lent(ByteBuffer caller) {
                super(caller);
                data = caller.array();
                at = caller.arrayOffset() + caller.position();
                bytes = caller.remaining();
                own = ByteBuffer.wrap(data, at, bytes);
            }

            /** The wrapped device hangs first, and reads the data only then. */
            void write(long address) {
                Throwable thrown = null;
                try {
                    inner().read(address, ByteBuffer.allocate(bytes));
                    inner().write(address, own.duplicate());
                } catch (DeviceException failure) {
                    thrown = failure;
                }
                end(thrown);
            }

            @Override
            protected void detach() {
                own = ByteBuffer.wrap(Arrays.copyOfRange(data, at, at + bytes));
            }
        }

        @Override
        public CompletableFuture<Void> readAsync(long address, ByteBuffer buffer) {
            throw new AssertionError("not used");
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

    private static void write(Operation hangs, UnaryOperator<Device> kind) throws Exception {
        List<MemoryDevice> disks = Members.memories(2);
        Members.mirror(disks);
        Watching watching = new Watching(disks.getFirst());
        FaultyDevice late = new FaultyDevice(watching, 1);
        try (MirroredDevice pool = MirroredDevice.of(
                List.of(kind.apply(late), disks.get(1)),
                MirrorOptions.DEFAULT.withMemberMillisMax(100))) {
            pool.open();
            // Marks the region: the next write writes only the data.
            pool.write(0, filled(1, 8));
            late.inject(Fault.of(new Fault.Hang()).on(hangs).at(DATA + 5, 3).times(1));
            byte[] mine = filled(2, 3);
            pool.write(5, mine);
            assertEquals(MemberState.STALE, pool.status().members().getFirst().state());
            Arrays.fill(mine, FOREIGN);
            late.release();
            pool.copies().join();
            assertEquals(Set.of(), watching.foreign,
                    "the disk got data put into the buffer later");
            assertArrayEquals(filled(2, 3), Members.read(pool, 5, 3));
        }
        Members.assertSame(disks);
    }

    /** Fault: a late member wrote from the caller's array after the write had returned. */
    @Test
    void aLateMemberWritesTheOriginalData() throws Exception {
        write(Operation.WRITE, device -> device);
        write(Operation.WRITE, AsyncDevice::of);
    }

    /**
     * Fault: the same for an asynchronous member, which releases the buffer when it is taken back.
     */
    @Test
    void aLateAsyncMemberReleasesTheBuffer() throws Exception {
        write(Operation.READ, Lending::new);
    }
}

package org.lunarsan.device.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.lunarsan.device.DeviceException;

/**
 * Buffers that cannot be used: too short, read-only, of an arena that is closed or confined to
 * another thread. Each is a mistake of the caller. The call fails, with an unchecked exception or a
 * {@link DeviceException}, and has no other effect on the device, except for the blocks of a failed
 * write, each of which is old or new and reads the same from then on.
 */
@Timeout(value = 60, unit = TimeUnit.SECONDS, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
abstract class BufferContract extends ContractBase {
    /** More than any queue, buffer pool or set of permits that failed calls could exhaust. */
    private static final int MISTAKES = 300;

    private static final int BLOCKS = 24;
    private static final int THREADS = 8;

    /** A call with a buffer that may be unusable. */
    interface Call {
        void run() throws Exception;
    }

    /** Returns the failure of a call, which must be of an allowed kind; null: it succeeded. */
    static Throwable mistake(Call call) {
        try {
            call.run();
            return null;
        } catch (RuntimeException | DeviceException refusal) {
            return refusal;
        } catch (Exception exception) {
            throw new AssertionError("a mistake of the caller ends with " + exception, exception);
        }
    }

    static void assertMistake(String what, Call call) {
        assertTrue(mistake(call) != null, what + " succeeded");
    }

    private ByteBuffer closedBuffer(int blocks) {
        ForeignMemory memory = ForeignMemory.confined();
        ByteBuffer buffer = memory.allocate(blocks * device.blockSize());
        memory.close();
        return buffer;
    }

    /** Returns a buffer confined to another thread, which has ended. */
    private ByteBuffer confinedElsewhere(int blocks) throws InterruptedException {
        int bytes = blocks * device.blockSize();
        List<ByteBuffer> made = new ArrayList<>();
        Thread owner = new Thread(() -> {
            try {
                made.add(ForeignMemory.confined().allocate(bytes));
            } catch (RuntimeException ignored) {
                // The caller makes the same call, and is skipped for the same reason.
            }
        });
        owner.start();
        owner.join();
        return made.isEmpty() ? closedBuffer(blocks) : made.getFirst();
    }

    /** Checks that every block has one of both values, whole, and reads the same each time. */
    private void assertOldOrNew(long address, int blocks, int before, int after) throws Exception {
        byte[] found = read(address, blocks);
        for (int block = 0; block < blocks; block++) {
            int at = block * device.blockSize();
            assertTrue(found[at] == before || found[at] == after, "block " + (address + block));
        }
        for (int again = 0; again < 8; again++) {
            assertArrayEquals(found, read(address, blocks), "reads of a block differ");
        }
    }

    private void assertWorks(int value) throws DeviceException {
        device.write(0, filled(value, BLOCKS));
        device.flush();
        assertHolds(0, filled(value, BLOCKS));
    }

    /**
     * Fault: a mirror took the exception caused by a closed buffer for a failure of its members:
     * the write was acknowledged, and all members but one were left out, durably.
     */
    @Test
    void aClosedBufferFailsItsCallOnly() throws Exception {
        assertFailsItsCallOnly("closed", closedBuffer(BLOCKS));
    }

    /** Fault: the same for a buffer confined to another thread. */
    @Test
    void aBufferOfAnotherThreadFailsItsCallOnly() throws Exception {
        assertFailsItsCallOnly("another thread's", confinedElsewhere(BLOCKS));
    }

    private void assertFailsItsCallOnly(String what, ByteBuffer buffer) throws Exception {
        device.write(0, filled(1, BLOCKS));
        device.flush();
        for (int count = 0; count < MISTAKES; count++) {
            assertMistake("a write from a buffer that is " + what, () -> device.write(0, buffer));
            assertMistake("a read into a buffer that is " + what, () -> device.read(0, buffer));
            assertEquals(0, buffer.position());
        }
        assertOldOrNew(0, BLOCKS, 1, 0);
        assertWorks(2);
    }

    /**
     * Goal: a buffer confined to the caller works, or fails only its call: a device may use threads
     * of its own.
     */
    @Test
    void aBufferOfTheCallerAloneWorksOrFailsItsCallOnly() throws Exception {
        ForeignMemory memory = ForeignMemory.confined();
        ByteBuffer buffer = memory.allocate(BLOCKS * device.blockSize());
        device.write(0, filled(1, BLOCKS));
        for (int count = 0; count < MISTAKES; count++) {
            copyOf(filled(3, BLOCKS), buffer.clear());
            if (mistake(() -> device.write(0, buffer)) == null) {
                assertHolds(0, filled(3, BLOCKS));
            } else {
                assertEquals(0, buffer.position());
                assertOldOrNew(0, BLOCKS, 1, 3);
            }
            device.write(0, filled(1, BLOCKS));
            if (mistake(() -> device.read(0, buffer.clear())) == null) {
                byte[] found = new byte[buffer.capacity()];
                buffer.flip().get(found);
                assertArrayEquals(filled(1, BLOCKS), found);
            }
        }
        memory.close();
        assertWorks(2);
    }

    /** Goal: the same for buffers that are too short or read-only, which any JDK supports. */
    @Test
    void aShortOrReadOnlyBufferFailsItsCallOnly() throws Exception {
        device.write(0, filled(1, BLOCKS));
        ByteBuffer partial = ByteBuffer.allocateDirect(BLOCKS * device.blockSize() - 1);
        ByteBuffer readOnly =
                ByteBuffer.allocateDirect(BLOCKS * device.blockSize()).asReadOnlyBuffer();
        for (int count = 0; count < MISTAKES; count++) {
            assertMistake("a write of a part of a block", () -> device.write(0, partial));
            assertMistake("a read of a part of a block", () -> device.read(0, partial));
            Throwable refusal = mistake(() -> device.read(0, readOnly));
            assertTrue(refusal instanceof ReadOnlyBufferException, () -> "not " + refusal);
        }
        assertHolds(0, filled(1, BLOCKS));
        assertWorks(2);
    }

    /**
     * Fault: a reader that waited for blocks prefetched for another one waited for ever if the
     * other's buffer could not be filled.
     */
    @Test
    void mistakesDoNoHarmToSequentialReaders() throws Exception {
        ByteBuffer closed = closedBuffer(1);
        int blocks = (int) Math.min(device.blockCount(), 240);
        for (int block = 0; block < blocks; block++) {
            device.write(block, filled(block / 2 + 1, 1));
        }
        for (int block = 0; block < blocks; block += 2) {
            long next = block + 1;
            assertHolds(block, filled(block / 2 + 1, 1));
            assertMistake("a read into a closed buffer", () -> device.read(next, closed));
        }
        together(THREADS, thread -> {
            for (int block = 0; block < blocks; block++) {
                long at = block;
                if (thread % 2 == 0) {
                    assertMistake("a closed buffer", () -> device.read(at, closed));
                } else {
                    assertHolds(block, filled(block / 2 + 1, 1));
                }
            }
        });
        assertWorks(2);
    }

    /** Goal: callers of neighbouring blocks are not affected by another caller's mistakes. */
    @Test
    void mistakesDoNoHarmToNeighbours() throws Exception {
        ByteBuffer closed = closedBuffer(2);
        together(THREADS, thread -> {
            for (int step = 0; step < 40; step++) {
                long address = thread * 2L;
                if (thread % 2 == 0) {
                    assertMistake("a closed buffer", () -> device.write(address, closed));
                    assertMistake("a closed buffer", () -> device.read(address, closed));
                } else {
                    device.write(address, filled(step + 1, 2));
                    assertHolds(address, filled(step + 1, 2));
                }
            }
        });
        assertWorks(2);
    }

    /** Goal: memory that is freed during a write fails at most that write. */
    @Test
    void memoryFreedDuringAWriteFailsItOnly() throws Exception {
        for (int count = 0; count < 40; count++) {
            ForeignMemory memory = ForeignMemory.shared();
            ByteBuffer buffer = memory.allocate(BLOCKS * device.blockSize());
            copyOf(filled(3, BLOCKS), buffer);
            device.write(0, filled(1, BLOCKS));
            together(2, thread -> {
                if (thread == 0) {
                    memory.closeWhenUnused();
                } else if (mistake(() -> device.write(0, buffer)) == null) {
                    assertHolds(0, filled(3, BLOCKS));
                }
            });
            assertOldOrNew(0, BLOCKS, 1, 3);
        }
        assertWorks(2);
    }
}

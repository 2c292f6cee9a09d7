package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;

class TransferFutureTest {
    private final ByteBuffer buffer = ByteBuffer.allocate(512);

    /** A read that the test ends. */
    private class Read extends TransferFuture {
        Read() {
            super(buffer);
        }

        @Override
        protected void detach() {}
    }

    /**
     * Fault: a device that ended a read after its buffer was taken back and before its future was
     * completed made it succeed, with nothing in the buffer.
     */
    @Test
    void theFirstCauseEndsTheFuture() throws Exception {
        List<Runnable> later = new ArrayList<>();
        Read read = new Read();
        read.completeAsync(() -> {
            throw new CancellationException("abandoned");
        }, later::add);
        read.end(null);
        assertFalse(read.isDone(), "the buffer was taken back before the end");
        assertEquals(0, buffer.position());
        later.getFirst().run();
        assertTrue(read.isCompletedExceptionally());
        assertEquals(0, buffer.position());
    }

    /**
     * Fault: likewise, a write that was abandoned before it began, and was skipped, succeeded: it
     * was lost silently, and a successful flush did not change that.
     */
    @Test
    void anUnexecutedWriteDoesNotSucceed() throws Exception {
        MemoryDevice disk = new MemoryDevice(512, 16);
        List<Runnable> tasks = new ArrayList<>();
        List<Runnable> later = new ArrayList<>();
        try (AsyncDevice async = AsyncDevice.of(disk, tasks::add)) {
            async.open();
            ByteBuffer data = ByteBuffer.allocate(512).put(0, (byte) 1);
            CompletableFuture<Void> write = async.writeAsync(3, data);
            write.completeAsync(() -> {
                throw new CancellationException("abandoned");
            }, later::add);
            tasks.getFirst().run();
            byte[] found = new byte[512];
            disk.read(3, found);
            assertEquals(0, found[0], "abandoned before it began");
            assertFalse(write.isDone());
            later.getFirst().run();
            assertTrue(write.isCompletedExceptionally());
        }
    }

    /**
     * Fault: likewise, a future that was abandoned after the end of its transfer failed, with its
     * buffer's position at the limit: a caller that tried again wrote nothing.
     */
    @Test
    void anEndedTransferIsNotAbandoned() throws Exception {
        boolean[] abandoned = {true, true};
        Read read = new Read() {
            @Override
            protected void ended() {
                abandoned[0] = completeExceptionally(new TimeoutException());
                abandoned[1] = cancel(true);
            }
        };
        read.end(null);
        assertFalse(abandoned[0]);
        assertFalse(abandoned[1]);
        read.get();
        assertEquals(512, buffer.position());
    }

    /** Goal: the same for a failed transfer: the device's failure is reported. */
    @Test
    void aFailedTransferIsNotAbandoned() {
        Read read = new Read() {
            @Override
            protected void ended() {
                complete(null);
            }
        };
        read.end(new IllegalStateException("bad"));
        ExecutionException thrown = assertThrows(ExecutionException.class, read::get);
        assertInstanceOf(IllegalStateException.class, thrown.getCause());
        assertEquals(0, buffer.position());
    }

    /** Goal: a future whose task an executor rejects does not stay open for ever. */
    @Test
    void aRefusedTaskEndsIt() {
        Read read = new Read();
        Executor full = task -> {
            throw new RejectedExecutionException("full");
        };
        assertThrows(RejectedExecutionException.class,
                () -> read.completeAsync(() -> null, full));
        assertTrue(read.isCompletedExceptionally());
    }
}

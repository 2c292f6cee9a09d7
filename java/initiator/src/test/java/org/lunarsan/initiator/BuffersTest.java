package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.UnalignedException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Offer;

/** Buffers that callers close, take back or misuse while another user works on the disk. */
final class BuffersTest {
    private static final int WRITE = 0x8a;
    private static final int READ = 0x88;
    /** Longer than the limit for sending without a copy, and shorter than one piece. */
    private static final int LONG_BYTES = 64 << 10;
    /** First block of the other user, beyond those of all tests. */
    private static final int OTHER = 4000;

    private MiniTarget target;
    private IscsiDevice disk;

    @BeforeEach
    void open() throws Exception {
        target = new MiniTarget(4096);
        open(IscsiOptions.defaults());
    }

    private void open(IscsiOptions options) throws DeviceException {
        if (disk != null) {
            disk.close();
        }
        disk = IscsiDevice.open(target.url(), options);
        disk.write(OTHER, filled(9, 512));
    }

    /** Checks that the other user lost neither data nor the session. */
    @AfterEach
    void nobodyElseIsDisturbed() throws Exception {
        try {
            byte[] found = new byte[512];
            disk.read(OTHER, found);
            assertArrayEquals(filled(9, 512), found);
        } finally {
            disk.close();
            target.close();
        }
    }

    private static byte[] filled(int value, int bytes) {
        byte[] data = new byte[bytes];
        Arrays.fill(data, (byte) value);
        return data;
    }

    private byte[] onDisk(int lba, int bytes) {
        synchronized (target.disk) {
            return Arrays.copyOfRange(target.disk, lba * 512, lba * 512 + bytes);
        }
    }

    private static Throwable failure(CompletableFuture<Void> future) {
        Throwable thrown = future.handle((done, why) -> why).join();
        return thrown instanceof CompletionException wrapped ? wrapped.getCause() : thrown;
    }

    /** Holds the first command of this opcode, with its data, until {@code goesOn} completes. */
    private final class Held {
        final CompletableFuture<Void> isMet = new CompletableFuture<>();
        final CompletableFuture<Void> goesOn = new CompletableFuture<>();

        Held(int opcode) {
            AtomicReference<ScsiCommand> first = new AtomicReference<>();
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof ScsiCommand command && (command.cdb()[0] & 0xff) == opcode
                        && first.compareAndSet(null, command)) {
                    isMet.complete(null);
                    goesOn.join();
                }
                return false;
            };
        }
    }

    /**
     * Fault: a buffer of a closed arena made the thread that reads or writes throw, and all users
     * lost the session.
     *
     * <p>Goal: such a buffer fails only the call that it was passed to.
     */
    @Test
    void aClosedArenaFailsItsCall() throws Exception {
        int sessions = target.sessions.get();
        for (int bytes : new int[] {512, LONG_BYTES}) {
            try (Arenas arena = Arenas.shared()) {
                ByteBuffer buffer = arena.allocate(bytes);
                arena.end();
                assertThrows(IllegalStateException.class, () -> disk.write(0, buffer));
                assertThrows(IllegalStateException.class, () -> disk.read(0, buffer));
                assertInstanceOf(IllegalStateException.class,
                        failure(disk.writeAsync(0, buffer)));
                assertInstanceOf(IllegalStateException.class, failure(disk.readAsync(0, buffer)));
            }
        }
        assertArrayEquals(new byte[LONG_BYTES], onDisk(0, LONG_BYTES));
        assertEquals(sessions, target.sessions.get());
    }

    /**
     * Fault: as above, if the arena is closed while the target executes the command.
     *
     * <p>Goal: a read fails with the reason, a write sends the data present at the call, and other
     * users keep the session; also with digests.
     */
    @Test
    void anArenaThatIsClosedMeanwhileFailsItsCall() throws Exception {
        for (Digest digest : Digest.values()) {
            open(IscsiOptions.builder().dataDigest(digest).build());
            for (int bytes : new int[] {512, LONG_BYTES, 1 << 20}) {
                int sessions = target.sessions.get();
                try (Arenas arena = Arenas.shared()) {
                    ByteBuffer buffer = arena.allocate(bytes);
                    Held held = new Held(READ);
                    CompletableFuture<Void> read = disk.readAsync(0, buffer);
                    held.isMet.join();
                    arena.end();
                    held.goesOn.complete(null);
                    assertUnusable(read);
                }
                assertEquals(sessions, target.sessions.get());
                writeOfAClosedArena(bytes);
            }
        }
    }

    /** The target solicits the data of the write after the arena was closed. */
    private void writeOfAClosedArena(int bytes) throws Exception {
        target.offer = target.offer.toBuilder().initialR2t(true).immediateData(false).build();
        open(IscsiOptions.defaults());
        int sessions = target.sessions.get();
        byte[] data = new byte[bytes];
        new Random(bytes).nextBytes(data);
        try (Arenas arena = Arenas.shared()) {
            ByteBuffer buffer = arena.allocate(bytes);
            buffer.put(data).flip();
            Held held = new Held(WRITE);
            CompletableFuture<Void> write = disk.writeAsync(0, buffer);
            held.isMet.join();
            arena.end();
            held.goesOn.complete(null);
            write.join();
            assertEquals(bytes, buffer.position());
        }
        assertArrayEquals(data, onDisk(0, bytes));
        assertEquals(sessions, target.sessions.get());
        target.offer = Offer.target();
    }

    private static void assertUnusable(CompletableFuture<Void> future) {
        Throwable why = failure(future);
        IscsiException reported = IscsiException.in(why).orElseThrow(() -> new AssertionError(why));
        assertEquals(Kind.REFUSED, reported.kind());
        assertTrue(
                reported.getMessage().contains("the buffer cannot be used"), reported.getMessage());
        assertInstanceOf(IllegalStateException.class, reported.getCause());
    }

    /**
     * Fault: a buffer of a confined arena ended the session of all users.
     *
     * <p>Goal: calls that wait may use such a buffer, because its own thread makes them; so may
     * asynchronous writes. An asynchronous read, which another thread would complete, is refused.
     */
    @Test
    void aConfinedArenaIsUsedByItsThreadAlone() throws Exception {
        int sessions = target.sessions.get();
        for (int bytes : new int[] {512, LONG_BYTES, 1 << 20}) {
            try (Arenas arena = Arenas.confined()) {
                byte[] data = new byte[bytes];
                new Random(bytes).nextBytes(data);
                ByteBuffer buffer = arena.allocate(bytes);
                buffer.put(data).flip();
                disk.write(0, buffer);
                assertEquals(bytes, buffer.position());
                assertArrayEquals(data, onDisk(0, bytes));
                disk.writeAsync(8, buffer.flip()).join();
                assertEquals(bytes, buffer.position());
                assertArrayEquals(data, onDisk(8, bytes));
                ByteBuffer found = arena.allocate(bytes);
                disk.read(8, found);
                assertEquals(buffer.flip(), found.flip());
                assertInstanceOf(IllegalArgumentException.class,
                        failure(disk.readAsync(0, found)));
                CompletableFuture<Throwable> elsewhere = CompletableFuture.supplyAsync(() ->
                        assertThrows(WrongThreadException.class, () -> disk.write(0, buffer)));
                elsewhere.join();
            }
        }
        assertEquals(sessions, target.sessions.get());
    }

    /** Goal: read-only buffers can be written from, but not read into. */
    @Test
    void readOnlyBuffersAreWrittenOnly() throws Exception {
        for (int bytes : new int[] {512, LONG_BYTES, 1 << 20}) {
            for (boolean direct : new boolean[] {false, true}) {
                byte[] data = new byte[bytes];
                new Random(bytes).nextBytes(data);
                ByteBuffer whole = direct ? ByteBuffer.allocateDirect(bytes)
                        : ByteBuffer.allocate(bytes);
                ByteBuffer buffer = whole.put(data).flip().asReadOnlyBuffer();
                disk.write(0, buffer);
                disk.writeAsync(3, buffer.flip()).join();
                assertArrayEquals(data, onDisk(3, bytes));
                buffer.flip();
                assertThrows(ReadOnlyBufferException.class, () -> disk.read(0, buffer));
                assertInstanceOf(ReadOnlyBufferException.class,
                        failure(disk.readAsync(0, buffer)));
            }
        }
    }

    /**
     * Fault: a buffer that was made shorter during its write ended the session.
     *
     * <p>Goal: position and limit at the call count; a length that is no whole number of blocks
     * fails the call.
     */
    @Test
    void aBufferMadeShorterChangesNothing() throws Exception {
        int sessions = target.sessions.get();
        ByteBuffer odd = ByteBuffer.allocateDirect(700);
        assertThrows(UnalignedException.class, () -> disk.write(0, odd));
        assertInstanceOf(UnalignedException.class, failure(disk.readAsync(0, odd)));
        target.offer = target.offer.toBuilder().initialR2t(true).immediateData(false).build();
        open(IscsiOptions.defaults());
        sessions++;
        for (int bytes : new int[] {512, LONG_BYTES}) {
            byte[] data = filled(bytes >> 9, bytes);
            ByteBuffer buffer = ByteBuffer.allocateDirect(bytes).put(data).flip();
            Held written = new Held(WRITE);
            CompletableFuture<Void> write = disk.writeAsync(0, buffer);
            written.isMet.join();
            buffer.limit(0);
            written.goesOn.complete(null);
            write.join();
            assertArrayEquals(data, onDisk(0, bytes));
            ByteBuffer found = ByteBuffer.allocateDirect(bytes);
            Held read = new Held(READ);
            CompletableFuture<Void> reads = disk.readAsync(0, found);
            read.isMet.join();
            found.limit(0);
            read.goesOn.complete(null);
            reads.join();
            assertEquals(bytes, found.position());
            assertEquals(ByteBuffer.wrap(data), found.flip());
        }
        assertEquals(sessions, target.sessions.get());
    }

    /**
     * Fault: a write that its caller abandoned by orTimeout sent data that the caller put into the
     * buffer afterwards.
     *
     * <p>Goal: the caller owns the buffer once the future is complete, however it was completed:
     * the disk gets the data of the write whenever the target solicits it.
     */
    @Test
    void anAbandonedWriteSendsItsOwnData() throws Exception {
        target.offer = target.offer.toBuilder().initialR2t(true).immediateData(false)
                .maxBurstBytes(16 << 10).maxOutstandingR2t(1).build();
        open(IscsiOptions.builder().dataDigest(Digest.CRC32C, Digest.NONE).build());
        for (int bytes : new int[] {512, LONG_BYTES, 1 << 20}) {
            for (ExternalCompletion way : ExternalCompletion.values()) {
                byte[] data = new byte[bytes];
                new Random(bytes).nextBytes(data);
                ByteBuffer buffer = ByteBuffer.allocateDirect(bytes + 512).position(512);
                buffer.put(data).position(512);
                Held held = new Held(WRITE);
                CompletableFuture<Void> write = disk.writeAsync(5, buffer);
                held.isMet.join();
                way.apply(write);
                assertEquals(512, buffer.position());
                for (int at = 0; at < buffer.limit(); at++) {
                    buffer.put(at, (byte) 0x66);
                }
                held.goesOn.complete(null);
                awaitOnDisk(5, data);
            }
        }
    }

    /**
     * Fault: a write that its caller abandoned could overwrite a later write.
     *
     * <p>Goal: a later write to the same blocks is not sent before the first has ended, in another
     * session if need be; writes to other blocks do not wait.
     */
    @Test
    void laterWritesWaitForAnAbandonedOne() throws Exception {
        for (boolean lost : new boolean[] {false, true}) {
            Held held = new Held(WRITE);
            CompletableFuture<Void> first =
                    disk.writeAsync(5, ByteBuffer.wrap(filled(1, 1024)));
            held.isMet.join();
            failure(first.orTimeout(1, TimeUnit.MILLISECONDS));
            // Check while the thread of the target's connection is held: the write is not sent.
            CompletableFuture<Void> later = disk.writeAsync(6, ByteBuffer.wrap(filled(2, 512)));
            CompletableFuture<Void> other = disk.writeAsync(9, ByteBuffer.wrap(filled(3, 512)));
            assertTrue(disk.isUncertain(6, 1));
            assertFalse(disk.isUncertain(7, 1));
            if (lost) {
                target.cutAll();
            }
            held.goesOn.complete(null);
            later.join();
            other.join();
            assertArrayEquals(filled(1, 512), onDisk(5, 512));
            assertArrayEquals(filled(2, 512), onDisk(6, 512));
            assertArrayEquals(filled(3, 512), onDisk(9, 512));
            await(() -> !disk.isUncertain(5, 2));
        }
    }

    /**
     * Fault: a write stopped by a full socket continued from the caller's buffer after orTimeout.
     *
     * <p>Goal: a PDU that was partly written to the socket is continued from a copy.
     */
    @Test
    void anAbandonedWriteWhileTheSocketIsFullSendsItsOwnData() throws Exception {
        int bytes = 200 << 10;
        int writes = 64;
        byte[][] data = new byte[writes][bytes];
        ByteBuffer[] buffers = new ByteBuffer[writes];
        try (MiniTarget large = new MiniTarget(writes * bytes / 512);
                IscsiDevice other = IscsiDevice.open(large.url())) {
            other.read(0, new byte[512]);
            CompletableFuture<Void> goesOn = new CompletableFuture<>();
            large.script = (wire, pdu, given) -> {
                goesOn.join();
                return false;
            };
            CompletableFuture<?>[] futures = new CompletableFuture<?>[writes];
            for (int index = 0; index < writes; index++) {
                new Random(index).nextBytes(data[index]);
                buffers[index] = ByteBuffer.allocateDirect(bytes).put(data[index]).flip();
                futures[index] = other.writeAsync((long) index * bytes / 512, buffers[index]);
            }
            for (int index = 0; index < writes; index++) {
                futures[index].cancel(true);
                buffers[index].clear().put(filled(0x66, bytes));
            }
            goesOn.complete(null);
            // A connection executes commands in order, and this one comes last.
            other.write(0, ByteBuffer.wrap(data[0], 0, 512));
            for (int index = 0; index < writes; index++) {
                byte[] expected = data[index];
                int from = index * bytes;
                await(() -> Arrays.equals(expected,
                        Arrays.copyOfRange(large.disk, from, from + bytes)));
            }
        }
    }

    /**
     * Fault: data of a read that its caller abandoned arrived in the buffer later.
     *
     * <p>Goal: no data arrives in the buffer once the future is complete.
     */
    @Test
    void anAbandonedReadTouchesNothing() throws Exception {
        Arrays.fill(target.disk, 0, 1 << 20, (byte) 0x55);
        for (Digest digest : Digest.values()) {
            open(IscsiOptions.builder().dataDigest(digest).build());
            for (int bytes : new int[] {512, LONG_BYTES, 1 << 20}) {
                for (ExternalCompletion way : ExternalCompletion.values()) {
                    ByteBuffer buffer = ByteBuffer.allocateDirect(bytes);
                    Held held = new Held(READ);
                    CompletableFuture<Void> read = disk.readAsync(0, buffer);
                    held.isMet.join();
                    way.apply(read);
                    assertEquals(0, buffer.position());
                    buffer.put(filled(0x11, bytes)).clear();
                    held.goesOn.complete(null);
                    // On the single connection all data of the abandoned read arrives before this
                    // answer.
                    disk.read(OTHER, new byte[512]);
                    disk.read(OTHER, new byte[512]);
                    assertEquals(ByteBuffer.wrap(filled(0x11, bytes)), buffer);
                }
            }
        }
    }

    /** Ways in which code other than the device completes a future. */
    private enum ExternalCompletion {
        OR_TIMEOUT, COMPLETE_ON_TIMEOUT, CANCEL, COMPLETE, FAIL, OBTRUDE;

        void apply(CompletableFuture<Void> future) {
            switch (this) {
                case OR_TIMEOUT -> assertInstanceOf(TimeoutException.class,
                        failure(future.orTimeout(1, TimeUnit.MILLISECONDS)));
                case COMPLETE_ON_TIMEOUT ->
                    future.completeOnTimeout(null, 1, TimeUnit.MILLISECONDS).join();
                case CANCEL -> assertTrue(future.cancel(false));
                case COMPLETE -> assertTrue(future.complete(null));
                case FAIL -> assertTrue(future.completeExceptionally(new TimeoutException()));
                case OBTRUDE -> future.obtrudeValue(null);
            }
        }
    }

    private void awaitOnDisk(int lba, byte[] data) throws Exception {
        await(() -> Arrays.equals(data, onDisk(lba, data.length)));
        // No write follows: this target executes commands in order.
        disk.read(0, new byte[512]);
        assertArrayEquals(data, onDisk(lba, data.length));
        Arrays.fill(target.disk, lba * 512, lba * 512 + data.length, (byte) 0);
    }

    private interface Condition {
        boolean holds();
    }

    /** Polls until the condition holds; no event signals the end of an abandoned command. */
    private static void await(Condition condition) {
        long until = System.nanoTime() + 60_000_000_000L;
        while (!condition.holds()) {
            assertTrue(System.nanoTime() < until, "the condition does not hold in time");
            Thread.yield();
        }
    }
}

package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.scsi.Sense;

/** Acknowledged writes that a target has lost, or seems to have lost. */
final class LostWritesTest {
    private static final int WRITE_ERROR = 0x0c00;

    /**
     * Fault: a write that the target could not make durable was reported as lost by a restart.
     *
     * <p>Goal: after a deferred error the next flush fails with the reason; the command that
     * carried the error does not fail.
     */
    @Test
    void deferredErrorsFailTheFlush() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            byte[] data = new byte[512];
            Arrays.fill(data, (byte) 5);
            disk.write(1, data);
            byte[] deferred = MiniTarget.senseOf(Sense.MEDIUM_ERROR, WRITE_ERROR, 1);
            deferred[0] = (byte) 0xf1;
            target.sense.add(deferred);
            byte[] found = new byte[512];
            disk.read(1, found);
            assertArrayEquals(data, found);
            assertEquals(1, disk.losses());
            String message = assertThrows(PoisonedException.class, disk::flush).getMessage();
            assertTrue(message.contains("the target could not write acknowledged data"), message);
            disk.flush();
            assertEquals(1, disk.losses());
        }
    }

    /** Goal: a flush concurrent to one that met an error does not succeed. */
    @Test
    void concurrentFlushesFailTogether() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            disk.write(1, new byte[512]);
            CompletableFuture<Void> both = new CompletableFuture<>();
            AtomicReference<ScsiCommand> held = new AtomicReference<>();
            target.script = (wire, pdu, data) -> {
                boolean flush = pdu instanceof ScsiCommand command
                        && command.cdb()[0] == (byte) 0x91;
                if (!flush || both.isDone() && held.get() == null) {
                    return false;
                }
                ScsiCommand command = (ScsiCommand) pdu;
                wire.expCmdSn = command.cmdSn() + 1;
                ScsiCommand before = held.getAndSet(both.isDone() ? null : command);
                if (before != null) {
                    new MiniUnit(wire).fail(before,
                            MiniTarget.senseOf(Sense.MEDIUM_ERROR, WRITE_ERROR, -1));
                    wire.respond(command, 0, new byte[0], 0, 0);
                }
                both.complete(null);
                return true;
            };
            CompletableFuture<Void> failed = disk.flushAsync();
            both.join();
            CompletableFuture<Void> concurrent = disk.flushAsync();
            Throwable failure = failed.handle((done, thrown) -> thrown).join();
            assertTrue(failure instanceof MediumException, () -> "not " + failure);
            Throwable also = concurrent.handle((done, thrown) -> thrown).join();
            assertTrue(also instanceof PoisonedException, () -> "not " + also);
        }
    }

    /** Goal: callers that use a new session at once do not miss its first unit attention. */
    @Test
    void aLateFirstAttentionIsNoReset() throws Exception {
        IscsiOptions two = IscsiOptions.builder().connections(2).build();
        try (MiniTarget target = new MiniTarget(64)) {
            target.writeCache = true;
            try (IscsiDevice disk = IscsiDevice.open(target.url(), two)) {
                disk.write(1, new byte[512]);
                AtomicInteger firstAttentions = new AtomicInteger();
                CompletableFuture<Void> other = new CompletableFuture<>();
                target.censor = (wire, pdu) -> {
                    boolean isFirst = pdu instanceof ScsiResponse response
                            && response.status() != 0 && isFirst(firstAttentions);
                    if (isFirst) {
                        // Delay the unit attention on this connection; the other one answers GOOD
                        // meanwhile.
                        other.completeOnTimeout(null, 300,
                                TimeUnit.MILLISECONDS).join();
                    } else if (firstAttentions.get() > 0 && pdu instanceof ScsiResponse) {
                        other.complete(null);
                    }
                    return true;
                };
                target.cutAll();
                List<CompletableFuture<Void>> reads = new ArrayList<>();
                for (int index = 0; index < 8; index++) {
                    reads.add(disk.readAsync(index, ByteBuffer.allocate(512)));
                }
                reads.forEach(CompletableFuture::join);
                assertEquals(2, target.sessions.get());
                disk.flush();
            }
        }
    }

    /** Goal: a flush does not succeed before a reset reported on another connection is seen. */
    @Test
    void aFlushDoesNotOvertakeAReset() throws Exception {
        flushBesideAnAnswerThatIsLate("the unit has reported a restart",
                (wire, held) -> new MiniUnit(wire).fail(held,
                        MiniTarget.senseOf(Sense.UNIT_ATTENTION, 0x2900, -1)));
    }

    /**
     * Fault: the message reported a restart of the target, though only a connection was lost.
     *
     * <p>Goal: a flush fails if the report of a reset may have been lost with its connection.
     */
    @Test
    void aFlushDoesNotTrustLostAnswers() throws Exception {
        flushBesideAnAnswerThatIsLate("a connection was lost before all commands on it were",
                (wire, held) -> wire.cut());
    }

    /** Late answer to a read that the target received before an answered flush. */
    private interface Late {
        void answer(MiniConnection wire, ScsiCommand held) throws IOException;
    }

    /** Checks that the message of the flush contains these words. */
    private static void flushBesideAnAnswerThatIsLate(String words, Late late) throws Exception {
        IscsiOptions two = IscsiOptions.builder().connections(2).build();
        try (MiniTarget target = new MiniTarget(64)) {
            target.writeCache = true;
            try (IscsiDevice disk = IscsiDevice.open(target.url(), two)) {
                disk.write(1, new byte[512]);
                CompletableFuture<Void> flushed = new CompletableFuture<>();
                CompletableFuture<Void> isHeld = new CompletableFuture<>();
                CompletableFuture<Void> isMet = new CompletableFuture<>();
                CompletableFuture<Void> isAnswered = new CompletableFuture<>();
                AtomicBoolean isFirst = new AtomicBoolean(true);
                target.script = (wire, pdu, data) -> {
                    boolean read = pdu instanceof ScsiCommand command
                            && command.cdb()[0] == (byte) 0x88 && isFirst.getAndSet(false);
                    if (read) {
                        wire.expCmdSn = ((ScsiCommand) pdu).cmdSn() + 1;
                        isHeld.complete(null);
                        // By now the flush has its answer on the other connection; if that
                        // sufficed, it would end meanwhile.
                        isAnswered.join();
                        flushed.completeOnTimeout(null, 300, TimeUnit.MILLISECONDS).join();
                        late.answer(wire, (ScsiCommand) pdu);
                    }
                    if (pdu instanceof ScsiCommand command && command.cdb()[0] == (byte) 0x91) {
                        isMet.complete(null);
                    }
                    return read;
                };
                CompletableFuture<Void> read = disk.readAsync(1, ByteBuffer.allocate(512));
                isHeld.join();
                CompletableFuture<Throwable> flush = disk.flushAsync().handle((done, thrown) -> {
                    flushed.complete(null);
                    return thrown;
                });
                isMet.join();
                // Follows the flush on its connection, because the other one has more pending.
                disk.read(2, new byte[512]);
                isAnswered.complete(null);
                Throwable failure = flush.join();
                assertTrue(failure instanceof PoisonedException, () -> "not " + failure);
                assertTrue(failure.getMessage().contains(words), failure::getMessage);
                read.join();
                disk.flush();
            }
        }
    }

    private static boolean isFirst(AtomicInteger firstAttentions) {
        return firstAttentions.getAndIncrement() == 0;
    }
}

package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.MediumException;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.scsi.Sense;

/** Long transfers, which are cut into concurrent pieces. */
final class PiecesTest {
    private static final int UNRECOVERED_READ = 0x1100;
    private static final int READ = 0x88;
    private static final int WRITE = 0x8a;
    /** 400 KiB in blocks of 512 bytes: two pieces, and the second is shorter. */
    private static final int BLOCKS = 800;
    private static final int LBA = 11;

    private static int opcode(Pdu pdu) {
        return pdu instanceof ScsiCommand command ? command.cdb()[0] & 0xff : -1;
    }

    private static int blocks(Pdu pdu) {
        return ByteBuffer.wrap(((ScsiCommand) pdu).cdb()).getInt(10);
    }

    private static long lba(Pdu pdu) {
        return ByteBuffer.wrap(((ScsiCommand) pdu).cdb()).getLong(2);
    }

    private static byte[] fill(MiniTarget target) {
        new Random(7).nextBytes(target.disk);
        byte[] expected = new byte[BLOCKS * 512];
        System.arraycopy(target.disk, LBA * 512, expected, 0, expected.length);
        return expected;
    }

    /** Goal: the second piece is sent before the first is answered. */
    @Test
    void piecesRunSideBySide() throws Exception {
        try (MiniTarget target = new MiniTarget(4096);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            byte[] expected = fill(target);
            List<ScsiCommand> held = new ArrayList<>();
            target.script = (wire, pdu, data) -> {
                if (opcode(pdu) != READ) {
                    return false;
                }
                ScsiCommand command = (ScsiCommand) pdu;
                wire.expCmdSn = command.cmdSn() + 1;
                held.add(command);
                if (held.size() == 2) {
                    // The later one first: the pieces must not be confused.
                    for (ScsiCommand each : held.reversed()) {
                        new MiniUnit(wire).execute(each, data);
                    }
                }
                return true;
            };
            byte[] found = new byte[expected.length];
            disk.read(LBA, found);
            assertArrayEquals(expected, found);
            // Threads race for which of them is sent first.
            assertEquals(List.of(288, 512),
                    held.stream().map(PiecesTest::blocks).sorted().toList());
        }
    }

    /**
     * Goal: a failed piece fails the transfer once all pieces have ended; the error names the
     * piece.
     */
    @Test
    void aFailedPieceFailsTheTransfer() throws Exception {
        try (MiniTarget target = new MiniTarget(4096);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            List<ScsiCommand> held = new ArrayList<>();
            CompletableFuture<Void> over = new CompletableFuture<>();
            AtomicInteger answered = new AtomicInteger();
            target.script = (wire, pdu, data) -> {
                if (opcode(pdu) != READ) {
                    return false;
                }
                wire.expCmdSn = ((ScsiCommand) pdu).cmdSn() + 1;
                held.add((ScsiCommand) pdu);
                if (held.size() == 2) {
                    held.sort(Comparator.comparingLong(PiecesTest::lba));
                    answered.incrementAndGet();
                    new MiniUnit(wire).fail(held.getLast(),
                            MiniTarget.senseOf(Sense.MEDIUM_ERROR, UNRECOVERED_READ, -1));
                    // If one answer sufficed for the transfer, it would end meanwhile.
                    over.completeOnTimeout(null, 300, TimeUnit.MILLISECONDS).join();
                    answered.incrementAndGet();
                    new MiniUnit(wire).execute(held.getFirst(), data);
                }
                return true;
            };
            ByteBuffer buffer = ByteBuffer.allocate(BLOCKS * 512);
            MediumException failure = assertThrows(MediumException.class,
                    () -> disk.read(LBA, buffer));
            int answeredThen = answered.get();
            over.complete(null);
            assertEquals(2, answeredThen);
            assertEquals(LBA + 512, failure.address());
            assertEquals(288, failure.blocks());
            assertEquals(0, buffer.position());
        }
    }

    /** Goal: pieces lost with their session are sent again, each by itself. */
    @Test
    void lostPiecesAreSentAgain() throws Exception {
        try (MiniTarget target = new MiniTarget(4096);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            byte[] expected = fill(target);
            for (int opcode : new int[] {READ, WRITE}) {
                AtomicInteger seen = new AtomicInteger();
                target.script = (wire, pdu, data) -> cutAtSecondCommand(opcode, seen, wire, pdu);
                byte[] found = new byte[expected.length];
                if (opcode == READ) {
                    disk.read(LBA, found);
                } else {
                    new Random(8).nextBytes(expected);
                    disk.write(LBA, expected);
                    System.arraycopy(target.disk, LBA * 512, found, 0, found.length);
                }
                assertArrayEquals(expected, found);
            }
            assertEquals(3, target.sessions.get());
        }
    }

    /** Cuts at the second command; the first piece may have been answered by then. */
    private static boolean cutAtSecondCommand(int opcode, AtomicInteger seen, MiniConnection wire,
            Pdu pdu) throws IOException {
        if (opcode(pdu) == opcode && seen.incrementAndGet() == 2) {
            wire.cut();
            throw new IOException("cut");
        }
        return false;
    }
}

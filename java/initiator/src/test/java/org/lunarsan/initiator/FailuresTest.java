package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.NoSpaceException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.OutOfRangeException;
import org.lunarsan.device.ReadOnlyDeviceException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.Status;

/** Errors with which a target answers commands, and their effect on callers. */
final class FailuresTest {
    private static final byte[] NOTHING = new byte[0];

    private MiniTarget target;
    private IscsiDevice disk;

    @BeforeEach
    void open() throws Exception {
        target = new MiniTarget(256);
        disk = IscsiDevice.open(target.url(),
                IscsiOptions.builder().recoveryTime(Duration.ofSeconds(1)).build());
        disk.read(0, new byte[512]);
    }

    @AfterEach
    void close() throws Exception {
        disk.close();
        target.close();
    }

    /** Has a step of the test answer every READ and WRITE. */
    private void onTransfer(Step step) {
        target.script = (wire, pdu, data) -> {
            boolean transfer = pdu instanceof ScsiCommand command
                    && (command.cdb()[0] == (byte) 0x88 || command.cdb()[0] == (byte) 0x8a);
            return transfer && step.answer(wire, (ScsiCommand) pdu);
        };
    }

    private interface Step {
        boolean answer(MiniConnection wire, ScsiCommand command) throws IOException;
    }

    private static boolean fail(MiniConnection wire, ScsiCommand command, byte[] sense)
            throws IOException {
        wire.expCmdSn = command.cmdSn() + 1;
        wire.respond(command, Status.CHECK_CONDITION, sense, 0,
                command.expectedDataTransferLength());
        return true;
    }

    private <T extends DeviceException> T failing(Class<T> kind) {
        byte[] data = new byte[8 * 512];
        T thrown = assertThrows(kind, () -> disk.read(16, data));
        assertEquals(16, thrown.address());
        assertEquals(8, thrown.blocks());
        assertEquals(disk.name(), thrown.device());
        return thrown;
    }

    /** Goal: sense data becomes the matching exception of a device, with the block at fault. */
    @Test
    void senseBecomesAKind() {
        onTransfer((wire, command) ->
                fail(wire, command, MiniTarget.senseOf(Sense.MEDIUM_ERROR, 0x1100, 19)));
        MediumException medium = failing(MediumException.class);
        assertEquals(Operation.READ, medium.operation());
        IscsiException failure = IscsiException.in(medium).orElseThrow();
        assertEquals(19, failure.address());
        assertEquals(1, failure.blocks());
        assertEquals(Sense.MEDIUM_ERROR, failure.sense().orElseThrow().key());
        assertEquals(Status.CHECK_CONDITION, failure.status().orElseThrow());
        onTransfer((wire, command) ->
                fail(wire, command, MiniTarget.senseOf(Sense.MEDIUM_ERROR, 0x1100, 99)));
        assertEquals(16, IscsiException.in(failing(MediumException.class)).orElseThrow().address(),
                "a block that was not asked for");
        onTransfer((wire, command) -> fail(wire, command,
                MiniTarget.senseOf(Sense.DATA_PROTECT, Sense.SPACE_ALLOCATION_FAILED, -1)));
        failing(NoSpaceException.class);
        onTransfer((wire, command) -> fail(wire, command,
                MiniTarget.senseOf(Sense.DATA_PROTECT, Sense.WRITE_PROTECTED, -1)));
        failing(ReadOnlyDeviceException.class);
        onTransfer((wire, command) -> fail(wire, command,
                MiniTarget.senseOf(Sense.ILLEGAL_REQUEST, Sense.LBA_OUT_OF_RANGE, -1)));
        failing(OutOfRangeException.class);
        onTransfer((wire, command) -> fail(wire, command, NOTHING));
        failing(MediumException.class);
        onTransfer((wire, command) -> fail(wire, command, new byte[] {1, 2, 3}));
        failing(MediumException.class);
    }

    /** Goal: a reservation conflict fails the call at once, with a message in words. */
    @Test
    void aReservationConflictIsReported() {
        AtomicInteger asked = new AtomicInteger();
        onTransfer((wire, command) -> {
            asked.incrementAndGet();
            wire.expCmdSn = command.cmdSn() + 1;
            wire.respond(command, Status.RESERVATION_CONFLICT, NOTHING, 0, 0);
            return true;
        });
        IscsiException failure = failing(IscsiException.class);
        assertEquals(Kind.STATUS, failure.kind());
        assertEquals(Status.RESERVATION_CONFLICT, failure.status().orElseThrow());
        assertTrue(failure.getMessage().contains("reservation conflict"));
        assertEquals(1, asked.get());
    }

    /** Goal: unit attentions and a busy target are retried unseen; endless ones fail the call. */
    @Test
    void transientFailuresAreRetried() throws Exception {
        disk.write(3, filled(7));
        for (int times = 1; times <= 3; times++) {
            AtomicInteger left = new AtomicInteger(times);
            onTransfer((wire, command) -> left.decrementAndGet() >= 0 && fail(wire, command,
                    MiniTarget.senseOf(Sense.UNIT_ATTENTION, 0x2a01, -1)));
            assertHolds(3, 7);
            AtomicInteger busy = new AtomicInteger(times);
            onTransfer((wire, command) -> {
                if (busy.decrementAndGet() < 0) {
                    return false;
                }
                wire.expCmdSn = command.cmdSn() + 1;
                wire.respond(command, Status.BUSY, NOTHING, 0, 0);
                return true;
            });
            disk.write(3, filled(7));
        }
        AtomicInteger code = new AtomicInteger();
        onTransfer((wire, command) -> fail(wire, command, MiniTarget.senseOf(
                Sense.UNIT_ATTENTION, 0x2a00 + code.incrementAndGet() % 8, -1)));
        DeviceException endless = assertThrows(DeviceException.class,
                () -> disk.read(3, new byte[512]));
        assertTrue(IscsiException.in(endless).isPresent());
    }

    /** Goal: an answer with less data than requested never counts as success. */
    @Test
    void missingDataIsNoData() throws Exception {
        onTransfer((wire, command) -> {
            wire.expCmdSn = command.cmdSn() + 1;
            wire.answerRead(command, new byte[512], Status.GOOD, NOTHING);
            return true;
        });
        DisconnectedException residual = failing(DisconnectedException.class);
        assertEquals(Kind.PROTOCOL, IscsiException.in(residual).orElseThrow().kind());
        onTransfer((wire, command) -> {
            wire.expCmdSn = command.cmdSn() + 1;
            wire.respond(command, Status.GOOD, NOTHING, 0, 512);
            return true;
        });
        assertThrows(DisconnectedException.class, () -> disk.write(0, new byte[1024]));
        onTransfer((wire, command) -> {
            // Status GOOD without any data and without a residual.
            wire.expCmdSn = command.cmdSn() + 1;
            wire.respond(command, Status.GOOD, NOTHING, 0, 0);
            return true;
        });
        DisconnectedException lie = failing(DisconnectedException.class);
        assertTrue(lie.getMessage().contains("0 of 4096 bytes"), lie.getMessage());
    }

    /** Goal: a failed call, synchronous or not, leaves its buffer's position unchanged. */
    @Test
    void failuresLeaveThePosition() {
        onTransfer((wire, command) ->
                fail(wire, command, MiniTarget.senseOf(Sense.HARDWARE_ERROR, 0x4400, -1)));
        ByteBuffer buffer = ByteBuffer.allocateDirect(4096).position(512).limit(2048);
        assertThrows(MediumException.class, () -> disk.read(0, buffer));
        assertThrows(MediumException.class, () -> disk.write(0, buffer));
        CompletionException later = assertThrows(CompletionException.class,
                () -> disk.readAsync(0, buffer).join());
        assertInstanceOf(MediumException.class, later.getCause());
        assertEquals(512, buffer.position());
        assertEquals(2048, buffer.limit());
    }

    /** Goal: write protection of a unit is detected, and writes are refused before any I/O. */
    @Test
    void writeProtectionIsKnown() throws Exception {
        try (MiniTarget other = new MiniTarget(64)) {
            other.writeProtected = true;
            try (IscsiDevice locked = IscsiDevice.open(other.url())) {
                assertTrue(locked.isReadOnly());
                assertThrows(ReadOnlyDeviceException.class,
                        () -> locked.write(0, new byte[512]));
                assertThrows(ReadOnlyDeviceException.class, () -> locked.unmap(0, 1));
                locked.read(0, new byte[512]);
            }
        }
    }

    /** Goal: a unit that is no disk or has an impossible size is not opened. */
    @Test
    void impossibleUnitsAreNotOpened() throws Exception {
        for (int size : new int[] {0, 520, 8192, 1 << 20}) {
            try (MiniTarget odd = new MiniTarget(64)) {
                odd.blockBytes = size;
                assertThrows(DeviceOpenException.class, () -> IscsiDevice.open(odd.url()));
            }
        }
        try (MiniTarget huge = new MiniTarget(64)) {
            for (long blocks : new long[] {0, Long.MIN_VALUE, Long.MAX_VALUE / 512 + 1}) {
                huge.blocks = blocks;
                assertThrows(DeviceOpenException.class, () -> IscsiDevice.open(huge.url()));
            }
            huge.blocks = Long.MAX_VALUE / 512;
            IscsiDevice.open(huge.url()).close();
        }
    }

    /** Goal: transfers above the target's limit are cut, in order, in both directions. */
    @Test
    void longTransfersAreCut() throws Exception {
        try (MiniTarget small = new MiniTarget(4096)) {
            small.transferBlocksMax = 7;
            try (IscsiDevice cut = IscsiDevice.open(small.url())) {
                byte[] data = new byte[1000 * 512];
                new Random(5).nextBytes(data);
                cut.write(11, data);
                byte[] found = new byte[data.length];
                cut.read(11, found);
                assertArrayEquals(data, found);
                ByteBuffer direct = ByteBuffer.allocateDirect(data.length);
                cut.readAsync(11, direct).join();
                assertEquals(ByteBuffer.wrap(data), direct.flip());
            }
        }
    }

    private static byte[] filled(int value) {
        byte[] block = new byte[512];
        Arrays.fill(block, (byte) value);
        return block;
    }

    private void assertHolds(long address, int value) throws DeviceException {
        byte[] found = new byte[512];
        disk.read(address, found);
        assertArrayEquals(filled(value), found);
    }
}

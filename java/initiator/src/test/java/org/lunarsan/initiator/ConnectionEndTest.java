package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.MediumException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.AsyncEvent;
import org.lunarsan.iscsi.pdu.AsyncMessage;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.scsi.Sense;

/** Connections and sessions that end while commands are pending; closing and reopening. */
final class ConnectionEndTest {
    private static boolean isWrite(Object pdu) {
        return pdu instanceof ScsiCommand command && command.cdb()[0] == (byte) 0x8a;
    }

    private static void askForLogout(MiniConnection wire, int seconds) throws IOException {
        wire.send(new AsyncMessage(Opcode.ASYNC_MESSAGE, 0x80, 0, 0, 0, -1, wire.statSn++,
                wire.expCmdSn, wire.maxCmdSn(), AsyncEvent.LOGOUT_REQUESTED, 0, 0, 0, seconds),
                new byte[0]);
    }

    /** Leaves the first write unanswered, and requests a logout of its connection instead. */
    private static void leaveAtWrite(MiniTarget target, int seconds) {
        AtomicReference<MiniConnection> left = new AtomicReference<>();
        target.script = (wire, pdu, data) -> {
            boolean first = isWrite(pdu) && left.compareAndSet(null, wire);
            if (first) {
                wire.expCmdSn = ((ScsiCommand) pdu).cmdSn() + 1;
                askForLogout(wire, seconds);
            }
            return first;
        };
    }

    /** Goal: after a logout of one connection its blocks can still be written. */
    @Test
    void aLogoutOfOneConnectionLeavesNoUncertainWrite() throws Exception {
        IscsiOptions two = IscsiOptions.builder().connections(2).build();
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url(), two)) {
            disk.read(0, new byte[512]);
            leaveAtWrite(target, 1);
            disk.write(1, new byte[512]);
            disk.write(1, new byte[512]);
            assertEquals(1, target.sessions.get());
            assertEquals(1, disk.connections());
        }
    }

    /**
     * Goal: a command that cannot be aborted because its connection is leaving ends the session.
     */
    @Test
    void anUnanswerableAbortEndsTheSession() throws Exception {
        IscsiOptions hasty = IscsiOptions.builder().commandTime(Duration.ofSeconds(5)).build();
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url(), hasty)) {
            leaveAtWrite(target, 0xffff);
            DeviceException late =
                    assertThrows(DeviceException.class, () -> disk.write(1, new byte[512]));
            assertEquals(Kind.TIMED_OUT, IscsiException.in(late).orElseThrow().kind());
            writeUntilSuccess(disk);
            assertTrue(target.sessions.get() > 1);
        }
    }

    /** Writes until it succeeds; on a machine that stalls for a while a write may be late too. */
    private static void writeUntilSuccess(IscsiDevice disk) throws DeviceException {
        while (true) {
            try {
                disk.write(1, new byte[512]);
                return;
            } catch (IscsiException exception) {
                assertEquals(Kind.TIMED_OUT, exception.kind());
            }
        }
    }

    /** Goal: a reopened device replaces its last session; another device does not. */
    @Test
    void openingAgainReplacesTheLastSession() throws Exception {
        List<Long> isids = new CopyOnWriteArrayList<>();
        try (MiniTarget target = new MiniTarget(64)) {
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof LoginRequest login && !isids.contains(login.isid())) {
                    isids.add(login.isid());
                }
                return false;
            };
            IscsiDevice disk = IscsiDevice.open(target.url());
            disk.close();
            disk.open();
            disk.close();
            assertEquals(2, target.sessions.get());
            assertEquals(1, isids.size());
            IscsiDevice.open(target.url()).close();
            assertEquals(2, isids.size());
            assertNotEquals(isids.getFirst(), isids.getLast());
        }
    }

    /**
     * Goal: closing in a callback is refused without effect: another thread can close the device.
     */
    @Test
    void closingInACallbackLeaksNothing() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            IscsiDevice disk = IscsiDevice.open(target.url());
            disk.read(0, new byte[512]);
            CompletableFuture<Void> hold = new CompletableFuture<>();
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof ScsiCommand) {
                    hold.join();
                }
                return false;
            };
            CompletableFuture<Void> refused = disk.readAsync(0, ByteBuffer.allocate(512))
                    .thenRun(() -> assertThrows(IllegalStateException.class, disk::close));
            hold.complete(null);
            refused.join();
            disk.read(0, new byte[512]);
            disk.close();
            disk.close();
            assertEquals(0, disk.connections());
            while (!target.wires.isEmpty()) {
                Thread.onSpinWait();
            }
        }
    }

    /** Goal: a future of a long transfer fails with the same exception as that of a short one. */
    @Test
    void futuresFailWithTheSameException() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            target.transferBlocksMax = 8;
            try (IscsiDevice disk = IscsiDevice.open(target.url())) {
                disk.read(0, new byte[512]);
                for (int blocks : new int[] {1, 64}) {
                    target.say(Sense.MEDIUM_ERROR, 0x1100);
                    Throwable why = disk.readAsync(0, ByteBuffer.allocate(blocks * 512))
                            .handle((done, thrown) -> thrown).join();
                    assertTrue(why instanceof MediumException, () -> "not " + why);
                }
                ByteBuffer all = ByteBuffer.allocate(64 * 512);
                disk.readAsync(0, all).join();
                assertFalse(all.hasRemaining());
            }
        }
    }

    /** Goal: commands that unmap blocks are built one by one, however many there are. */
    @Test
    void unmapRangesAreSentOneByOne() {
        Failure enough = Failure.of(Kind.REFUSED, "enough");
        for (UnitLimits.Unmapping how
                : List.of(UnitLimits.Unmapping.ZEROES, UnitLimits.Unmapping.HINT)) {
            UnitLimits limits = new UnitLimits(new Geometry(512, 1L << 50), 8, how, 1, 1, true);
            AtomicInteger sent = new AtomicInteger();
            Failure failure = assertThrows(Failure.class, () -> limits.unmap(7, 1L << 49, order -> {
                assertEquals(7 + sent.get(), order.lba());
                if (sent.incrementAndGet() == 3) {
                    throw enough;
                }
            }));
            assertEquals(enough, failure);
        }
    }

    /** Goal: a range of more than 2^32 blocks is unmapped whole, by commands within the limit. */
    @Test
    void moreThan32BitsOfBlocksAreUnmapped() throws Exception {
        long from = 1L << 32;
        long blocks = (1L << 33) + 8;
        for (UnitLimits.Unmapping how
                : List.of(UnitLimits.Unmapping.ZEROES, UnitLimits.Unmapping.HINT)) {
            UnitLimits limits =
                    new UnitLimits(new Geometry(512, 1L << 50), 8, how, 0xffff, 8, true);
            AtomicLong next = new AtomicLong(from);
            limits.unmap(from, blocks, order -> {
                assertEquals(next.get(), order.lba());
                long left = from + blocks - next.get();
                assertEquals(Math.min(0xffff, left), order.blocks());
                next.addAndGet(order.blocks());
            });
            assertEquals(from + blocks, next.get());
        }
    }
}

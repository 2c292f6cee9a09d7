package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.TaskManagementRequest;

/**
 * Commands without an answer, limits of commands in flight, threads that may not wait, and closing.
 */
final class CommandTimeTest {
    /** The queries of opening have to be answered within the command time as well. */
    private static IscsiOptions.Builder shortTimes() {
        return IscsiOptions.builder().commandTime(Duration.ofSeconds(5));
    }

    private static boolean isWrite(Object pdu) {
        return pdu instanceof ScsiCommand command && command.cdb()[0] == (byte) 0x8a;
    }

    /** Goal: a command that is not answered in time is aborted and fails; the session continues. */
    @Test
    void overdueCommandsAreAborted() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url(), shortTimes().build())) {
            writeUntilSuccess(disk);
            AtomicInteger aborts = new AtomicInteger();
            AtomicBoolean hangs = new AtomicBoolean(true);
            target.script = (wire, pdu, data) -> {
                aborts.addAndGet(pdu instanceof TaskManagementRequest ? 1 : 0);
                boolean lost = hangs.get() && isWrite(pdu);
                if (lost) {
                    wire.expCmdSn = ((ScsiCommand) pdu).cmdSn() + 1;
                }
                return lost;
            };
            DeviceException late =
                    assertThrows(DeviceException.class, () -> disk.write(0, new byte[1024]));
            assertEquals(Kind.TIMED_OUT, IscsiException.in(late).orElseThrow().kind());
            assertTrue(aborts.get() > 0);
            hangs.set(false);
            writeUntilSuccess(disk);
        }
    }

    /**
     * Goal: a target that does not answer the abort either loses the session; the next one works.
     */
    @Test
    void unansweredAbortsEndTheSession() throws Exception {
        IscsiOptions options = shortTimes().abortTime(Duration.ofMillis(200)).build();
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url(), options)) {
            writeUntilSuccess(disk);
            MiniConnection first = target.wires.getLast();
            target.script = (wire, pdu, data) -> {
                boolean lost = wire == first
                        && (isWrite(pdu) || pdu instanceof TaskManagementRequest);
                if (lost && pdu instanceof ScsiCommand command) {
                    wire.expCmdSn = command.cmdSn() + 1;
                }
                return lost;
            };
            DeviceException late =
                    assertThrows(DeviceException.class, () -> disk.write(0, new byte[1024]));
            assertEquals(Kind.TIMED_OUT, IscsiException.in(late).orElseThrow().kind());
            writeUntilSuccess(disk);
            assertTrue(target.sessions.get() > 1);
        }
    }

    /** Writes until it succeeds; on a machine that stalls for a while a write may be late too. */
    private static void writeUntilSuccess(IscsiDevice disk) throws DeviceException {
        while (true) {
            try {
                disk.write(0, new byte[512]);
                return;
            } catch (IscsiException exception) {
                assertEquals(Kind.TIMED_OUT, exception.kind());
            }
        }
    }

    /** Goal: requests beyond the queue depth wait, and all complete. */
    @Test
    void callsWaitForFreeSlots() throws Exception {
        IscsiOptions narrow = IscsiOptions.builder().queueDepth(2).build();
        try (MiniTarget target = new MiniTarget(256);
                IscsiDevice disk = IscsiDevice.open(target.url(), narrow)) {
            AtomicInteger peak = new AtomicInteger();
            AtomicInteger concurrent = new AtomicInteger();
            target.script = (wire, pdu, data) -> {
                if (isWrite(pdu)) {
                    peak.accumulateAndGet(concurrent.incrementAndGet(), Math::max);
                    wire.handle(pdu, data);
                    concurrent.decrementAndGet();
                    return true;
                }
                return false;
            };
            List<CompletableFuture<Void>> writes = new ArrayList<>();
            for (int block = 0; block < 200; block++) {
                byte[] data = new byte[512];
                Arrays.fill(data, (byte) block);
                writes.add(disk.writeAsync(block, ByteBuffer.wrap(data)));
            }
            writes.forEach(CompletableFuture::join);
            assertTrue(peak.get() <= 2);
            for (int block = 0; block < 200; block++) {
                assertEquals((byte) block, target.disk[block * 512]);
            }
        }
    }

    /** Goal: a call that waits is refused in a thread where it would deadlock. */
    @Test
    void callbacksMayNotCallTheDevice() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.open(target.url())) {
            disk.read(0, new byte[512]);
            CompletableFuture<Void> hold = new CompletableFuture<>();
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof ScsiCommand) {
                    hold.join();
                }
                return false;
            };
            CompletableFuture<Boolean> refused =
                    disk.readAsync(0, ByteBuffer.allocate(512)).thenApply(done -> {
                        assertThrows(IllegalStateException.class,
                                () -> disk.read(0, new byte[512]));
                        assertThrows(IllegalStateException.class, disk::flush);
                        return true;
                    });
            hold.complete(null);
            assertTrue(refused.join());
            disk.read(0, new byte[512]);
        }
    }

    /** Goal: closing ends, within its time limit, calls that wait for a silent target. */
    @Test
    void closingEndsAllWaits() throws Exception {
        IscsiOptions quick = IscsiOptions.builder().logoutTime(Duration.ofMillis(100)).build();
        try (MiniTarget target = new MiniTarget(64)) {
            IscsiDevice disk = IscsiDevice.open(target.url(), quick);
            byte[] before = new byte[512];
            Arrays.fill(before, (byte) 3);
            disk.write(0, before);
            target.script = (wire, pdu, data) -> true;
            ByteBuffer direct = ByteBuffer.allocateDirect(512);
            CompletableFuture<Void> read = disk.readAsync(0, direct);
            CompletableFuture<Void> flush = disk.flushAsync();
            disk.close();
            for (CompletableFuture<Void> each : List.of(read, flush)) {
                Throwable why = each.handle((done, thrown) -> thrown).join();
                assertTrue(why instanceof DeviceClosedException, () -> "not " + why);
            }
            target.script = (wire, pdu, data) -> false;
            disk.open();
            byte[] found = new byte[512];
            disk.read(0, found);
            assertArrayEquals(before, found);
            disk.close();
            assertFalse(disk.connections() > 0);
        }
    }
}

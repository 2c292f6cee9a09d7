package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.ChangedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.device.testkit.Seed;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.AsyncEvent;
import org.lunarsan.iscsi.pdu.AsyncMessage;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.pdu.LogoutRequest;
import org.lunarsan.iscsi.pdu.NopIn;
import org.lunarsan.iscsi.pdu.NopOut;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.Reject;
import org.lunarsan.iscsi.pdu.RejectReason;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.TextRequest;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Offer;

/** Lost sessions, and their effect on commands and data. */
final class SessionLossTest {
    private static final int BLOCKS = 512;

    private MiniTarget target;
    private IscsiDevice disk;

    @BeforeEach
    void serve() throws Exception {
        target = new MiniTarget(BLOCKS).withoutWait();
    }

    @AfterEach
    void close() throws Exception {
        if (disk != null) {
            disk.close();
        }
        target.close();
    }

    private void open(IscsiOptions options) throws DeviceException {
        disk = IscsiDevice.open(target.url(), options);
        disk.read(0, new byte[512]);
    }

    private static byte[] filled(int value, int blocks) {
        byte[] data = new byte[blocks * 512];
        Arrays.fill(data, (byte) value);
        return data;
    }

    private void assertHolds(long address, byte[] expected) throws DeviceException {
        byte[] found = new byte[expected.length];
        disk.read(address, found);
        assertArrayEquals(expected, found);
    }

    /** Goal: no write is lost or undone, at whatever PDU the connection is cut. */
    @Test
    void cutsAtAnyPduLoseNothing() {
        Seed.run(random -> {
            target.offer = target.offer.toBuilder().firstBurstBytes(1024).maxBurstBytes(4096)
                    .maxRecvDataSegmentBytes(2048).initialR2t(random.nextBoolean())
                    .immediateData(random.nextBoolean()).build();
            open(IscsiOptions.builder().dataDigest(Digest.CRC32C, Digest.NONE)
                    .connections(1 + random.nextInt(3)).build());
            cutAtRandom(random.nextLong());
            int threads = 4;
            int share = BLOCKS / threads;
            List<Thread> running = new ArrayList<>();
            AtomicReference<Throwable> failure = new AtomicReference<>();
            for (int index = 0; index < threads; index++) {
                Random own = new Random(random.nextLong());
                int first = index * share;
                running.add(Thread.ofVirtual().start(() -> {
                    try {
                        model(own, first, share);
                    } catch (Throwable thrown) {
                        failure.compareAndSet(null, thrown);
                    }
                }));
            }
            for (Thread thread : running) {
                thread.join();
            }
            if (failure.get() != null) {
                throw new AssertionError(failure.get().toString(), failure.get());
            }
            assertTrue(target.sessions.get() > 3, "it was cut");
        });
    }

    /** Cuts a connection at about one PDU in forty, in either direction. */
    private void cutAtRandom(long seed) {
        Random cuts = new Random(seed);
        AtomicInteger left = new AtomicInteger(40);
        target.censor = (wire, pdu) -> {
            if (pdu instanceof LoginResponse || !drawn(cuts, left)) {
                return true;
            }
            boolean before = cuts.nextBoolean();
            wire.cut();
            return !before;
        };
        target.script = (wire, pdu, data) -> {
            boolean cut = !(pdu instanceof LoginRequest)
                    && drawn(cuts, left);
            if (cut && cuts.nextBoolean()) {
                // Execute the command, but lose the answer.
                wire.handle(pdu, data);
            }
            if (cut) {
                wire.cut();
            }
            return cut;
        };
    }

    private static boolean drawn(Random cuts, AtomicInteger left) {
        synchronized (cuts) {
            return cuts.nextInt(40) == 0 && left.decrementAndGet() >= 0;
        }
    }

    private void model(Random random, int first, int share) throws DeviceException {
        byte[] model = new byte[share * 512];
        for (int step = 0; step < 120; step++) {
            int blocks = 1 + random.nextInt(24);
            int at = random.nextInt(share - blocks);
            byte[] part = Arrays.copyOfRange(model, at * 512, (at + blocks) * 512);
            switch (random.nextInt(5)) {
                case 0 -> assertHolds(first + at, part);
                case 1 -> disk.flush();
                case 2 -> {
                    ByteBuffer direct = ByteBuffer.allocateDirect(part.length);
                    disk.readAsync(first + at, direct).join();
                    assertEquals(ByteBuffer.wrap(part), direct.flip());
                }
                default -> {
                    random.nextBytes(part);
                    disk.write(first + at, part);
                    System.arraycopy(part, 0, model, at * 512, part.length);
                }
            }
        }
        assertHolds(first, model);
    }

    /** Goal: a silent target is pinged, left, and connected again. */
    @Test
    void silenceIsNoticed() throws Exception {
        // Only the silent session may exceed the time.
        open(IscsiOptions.builder().pingInterval(Duration.ofMillis(50))
                .pingTime(Duration.ofSeconds(5)).build());
        disk.write(1, filled(3, 1));
        AtomicInteger pings = new AtomicInteger();
        AtomicReference<MiniConnection> mute = new AtomicReference<>();
        target.script = (wire, pdu, data) -> {
            mute.compareAndSet(null, wire);
            boolean isMute = wire == mute.get();
            pings.addAndGet(isMute && pdu instanceof NopOut ? 1 : 0);
            return isMute;
        };
        assertHolds(1, filled(3, 1));
        assertTrue(pings.get() > 0);
        assertTrue(target.sessions.get() > 1);
    }

    /** Goal: answered pings keep an idle session, which also answers pings of the target. */
    @Test
    void pingsKeepAnIdleSession() throws Exception {
        CompletableFuture<Void> answered = new CompletableFuture<>();
        AtomicInteger pings = new AtomicInteger();
        target.script = (wire, pdu, data) -> {
            boolean first = pdu instanceof NopOut nop && nop.initiatorTaskTag() != -1
                    && pings.getAndIncrement() == 0;
            if (first) {
                // In this thread, so that the StatSN of both are in order.
                wire.handle(pdu, data);
                wire.send(new NopIn(Opcode.NOP_IN, 0x80, 0, 0, 0, -1, 77, wire.statSn,
                        wire.expCmdSn, wire.maxCmdSn()), new byte[0]);
            } else if (pdu instanceof NopOut nop && nop.targetTransferTag() == 77) {
                answered.complete(null);
            }
            return first;
        };
        open(IscsiOptions.builder().pingInterval(Duration.ofMillis(50)).build());
        answered.join();
        disk.read(0, new byte[512]);
    }

    /** Goal: the initiator logs out on request and continues in another session. */
    @Test
    void requestedLogoutsAreDone() throws Exception {
        open(IscsiOptions.defaults());
        disk.write(1, filled(4, 1));
        CompletableFuture<Void> asked = new CompletableFuture<>();
        target.script = (wire, pdu, data) -> {
            if (pdu instanceof LogoutRequest) {
                asked.complete(null);
            }
            return false;
        };
        tell(AsyncEvent.LOGOUT_REQUESTED, 3);
        asked.join();
        assertHolds(1, filled(4, 1));
        assertEquals(2, target.sessions.get());
    }

    /** Goal: the initiator begins a text exchange when the target requests a negotiation. */
    @Test
    void requestedNegotiationIsDone() throws Exception {
        open(IscsiOptions.defaults());
        CompletableFuture<Void> asked = new CompletableFuture<>();
        target.script = (wire, pdu, data) -> {
            if (pdu instanceof TextRequest) {
                asked.complete(null);
            }
            return false;
        };
        tell(AsyncEvent.RENEGOTIATE, 3);
        asked.join();
        disk.write(1, filled(4, 1));
        assertHolds(1, filled(4, 1));
        tell(AsyncEvent.SESSION_WILL_DROP, 0);
        target.cutAll();
        assertHolds(1, filled(4, 1));
    }

    private void tell(int event, int parameter3) throws Exception {
        MiniConnection wire = target.wires.getFirst();
        wire.send(new AsyncMessage(Opcode.ASYNC_MESSAGE, 0x80, 0, 0, 0, -1, wire.statSn++,
                wire.expCmdSn, wire.maxCmdSn(), event, 0, 0, 0, parameter3), new byte[0]);
    }

    /** Goal: damaged headers and data end the session; the data stays intact. */
    @Test
    void damagedPdusAreDropped() throws Exception {
        open(IscsiOptions.builder().headerDigest(Digest.CRC32C).dataDigest(Digest.CRC32C).build());
        disk.write(1, filled(5, 8));
        for (int round = 0; round < 2; round++) {
            boolean header = round == 0;
            AtomicInteger left = new AtomicInteger(1);
            target.censor = (wire, pdu) -> {
                if (pdu instanceof DataIn && left.decrementAndGet() == 0) {
                    wire.spoilHeader = header;
                    wire.spoilData = !header;
                }
                return true;
            };
            assertHolds(1, filled(5, 8));
        }
        assertEquals(3, target.sessions.get());
    }

    /** Goal: a write with damaged data is sent again; other rejects fail the call. */
    @Test
    void rejectsAreReportedOrRetried() throws Exception {
        open(IscsiOptions.defaults());
        AtomicInteger reason = new AtomicInteger(RejectReason.DATA_DIGEST_ERROR);
        target.script = (wire, pdu, data) -> {
            boolean write = pdu instanceof ScsiCommand command
                    && command.cdb()[0] == (byte) 0x8a;
            int why = write ? reason.getAndSet(0) : 0;
            if (why != 0) {
                reject(wire, pdu, why);
            }
            return why != 0;
        };
        disk.write(1, filled(6, 1));
        assertHolds(1, filled(6, 1));
        reason.set(RejectReason.PROTOCOL_ERROR);
        DeviceException exception =
                assertThrows(DeviceException.class, () -> disk.write(1, filled(7, 1)));
        assertEquals(Kind.REFUSED, IscsiException.in(exception).orElseThrow().kind());
        disk.write(1, filled(8, 1));
        assertHolds(1, filled(8, 1));
        assertEquals(1, target.sessions.get());
    }

    private static void reject(MiniConnection wire, Pdu bad, int reason) throws IOException {
        ByteBuffer header = ByteBuffer.allocate(48);
        bad.encode(header);
        wire.expCmdSn = ((ScsiCommand) bad).cmdSn();
        wire.send(new Reject(Opcode.REJECT, 0x80, reason, 0, 48, -1, wire.statSn++, wire.expCmdSn,
                wire.maxCmdSn(), 0), header.array());
    }

    /** Goal: a reset that may have lost acknowledged writes fails the next flush, once. */
    @Test
    void aLostCacheIsReported() throws Exception {
        target.writeCache = true;
        open(IscsiOptions.defaults());
        disk.write(1, filled(1, 1));
        target.cutAll();
        disk.flush();
        disk.write(1, filled(2, 1));
        target.firstAttention = 0x2900;
        target.cutAll();
        assertHolds(1, filled(2, 1));
        PoisonedException exception = assertThrows(PoisonedException.class, disk::flush);
        assertEquals(Kind.CACHE_LOST, IscsiException.in(exception).orElseThrow().kind());
        disk.flush();
        target.writeCache = false;
        target.cutAll();
        disk.write(1, filled(3, 1));
        target.cutAll();
        disk.flush();
    }

    /** Goal: another unit, or a smaller one, is never used; the right one is accepted again. */
    @Test
    void anotherUnitIsNotUsed() throws Exception {
        open(IscsiOptions.defaults());
        target.serial = "mini-2";
        target.cutAll();
        ChangedException other = assertThrows(ChangedException.class,
                () -> disk.write(1, filled(9, 1)));
        assertEquals(Kind.CHANGED, IscsiException.in(other).orElseThrow().kind());
        assertTrue(other.getMessage().contains("`mini-2` instead of `mini-1`"));
        assertEquals(0, target.disk[512], "nothing was written");
        target.serial = "mini-1";
        target.blocks = BLOCKS / 2;
        target.cutAll();
        assertEquals("the disk has shrunk from 512 to 256 blocks",
                messageAfterDetection("instead of"));
        assertThrows(ChangedException.class, () -> disk.read(1, new byte[512]));
        target.blocks = BLOCKS;
        target.cutAll();
        assertEquals("", messageAfterDetection("shrunk"));
        disk.write(1, filled(9, 1));
    }

    private boolean readsZeroes() throws DeviceException {
        try {
            disk.read(0, new byte[512]);
            return true;
        } catch (DisconnectedException exception) {
            return false;
        }
    }

    /** Returns the message of a read once it differs; a finding is cached for a second. */
    private String messageAfterDetection(String before) {
        while (true) {
            try {
                disk.read(1, new byte[512]);
                return "";
            } catch (DeviceException exception) {
                String words = exception.getMessage();
                if (!words.contains(before)) {
                    return words.replaceAll(".*: |[(].*", "").strip();
                }
                Thread.onSpinWait();
            }
        }
    }

    /**
     * Goal: when the recovery time is over, all waiting calls fail with a message about the
     * attempts.
     */
    @Test
    void anExpiredRecoveryTimeIsReported() throws Exception {
        open(IscsiOptions.builder().recoveryTime(Duration.ofMillis(300)).build());
        target.loginStatus = LoginStatus.SERVICE_UNAVAILABLE;
        target.cutAll();
        List<CompletableFuture<Void>> waiting = new ArrayList<>();
        for (int index = 0; index < 8; index++) {
            waiting.add(disk.writeAsync(index, ByteBuffer.wrap(filled(1, 1))));
        }
        for (CompletableFuture<Void> each : waiting) {
            Throwable why = each.handle((done, thrown) -> thrown).join();
            assertTrue(why instanceof DisconnectedException, () -> "not " + why);
            assertTrue(why.getMessage().contains("was not re-established within 0.3 s"),
                    why.getMessage());
        }
    }

    /**
     * Fault: DefaultTime2Wait was counted from the next call: an idle device waited 2 s too long,
     * and one with a shorter recovery time never came back.
     *
     * <p>Goal: it is counted from the loss. A call long after the loss does not wait, one right
     * after it fails when its time is over, and the next finds the session.
     */
    @Test
    void theWaitRunsFromTheLoss() throws Exception {
        target.offer = Offer.target();
        int wait = target.offer.timeToWaitSeconds();
        assertEquals(2, wait);
        open(IscsiOptions.builder().recoveryTime(Duration.ofSeconds(1)).build());
        long cut = System.nanoTime();
        target.cutAll();
        DisconnectedException early = assertThrows(DisconnectedException.class,
                () -> disk.read(0, new byte[512]));
        assertTrue(early.getMessage().contains("was not re-established within 1 s"),
                early.getMessage());
        // Nothing signals the passing of time, so wait: longer than a login that would wait from
        // the first call, which would otherwise be found working.
        UninterruptedWaits.pause(cut + (wait * 1_000L + 500) * 1_000_000L - System.nanoTime());
        long asked = System.nanoTime();
        disk.read(0, new byte[512]);
        assertTrue(System.nanoTime() - asked < 1_000_000_000L, "it waited once more");
        assertEquals(2, target.sessions.get());
    }

    /**
     * Fault: a cache that may be lost was always reported as lost by a restart.
     *
     * <p>Goal: the message gives the known cause: a loss of the session alone, or a reset.
     */
    @Test
    void theCauseOfALostCacheIsReported() throws Exception {
        target.writeCache = true;
        open(IscsiOptions.defaults());
        // The unit reports nothing to a new session: neither a reset nor a nexus loss.
        target.firstAttention = 0;
        assertTrue(lostBy().contains("the session was lost, and the target did not report"));
        target.firstAttention = 0x2901;
        assertTrue(lostBy().contains("the unit has reported a restart"));
        target.firstAttention = 0x2907;
        target.cutAll();
        disk.write(1, filled(2, 1));
        disk.flush();
    }

    private String lostBy() throws DeviceException {
        disk.write(1, filled(1, 1));
        target.cutAll();
        disk.read(1, new byte[512]);
        return assertThrows(PoisonedException.class, disk::flush).getMessage();
    }

    /** Goal: a target that refuses authorization is not tried again and again. */
    @Test
    void aRefusalIsReportedAtOnce() throws Exception {
        open(IscsiOptions.defaults());
        target.loginStatus = LoginStatus.AUTHORIZATION_FAILURE;
        target.cutAll();
        DisconnectedException refused = assertThrows(DisconnectedException.class,
                () -> disk.read(0, new byte[512]));
        assertTrue(refused.getMessage().contains("AUTHORIZATION"), refused.getMessage());
        target.loginStatus = 0;
        disk.read(0, new byte[512]);
    }

    /**
     * Goal: a login to another portal group makes another nexus: no session follows a lost one
     * there.
     */
    @Test
    void anotherPortalGroupIsAnotherNexus() throws Exception {
        try (MiniTarget elsewhere = new MiniTarget(BLOCKS).withoutWait()) {
            elsewhere.group = 2;
            IscsiOptions options = IscsiOptions.builder().recoveryTime(Duration.ofMillis(500))
                    .portals(List.of(IscsiUrl.Portal.parse(elsewhere.portal()))).build();
            open(options);
            target.close();
            assertThrows(DisconnectedException.class, () -> disk.read(0, new byte[512]));
            elsewhere.group = 1;
            while (!readsZeroes()) {
                Thread.onSpinWait();
            }
            assertTrue(elsewhere.sessions.get() > 0);
        }
    }
}

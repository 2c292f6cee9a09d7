package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.EOFException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.text.Key;

/** Targets that do not support everything that the RFC allows an initiator. */
final class QuirksTest {
    private static final IscsiOptions FOUR = IscsiOptions.builder().connections(4).build();
    private static final String SETTLES = "sessions continue with";
    private static final long MINUTE = 60_000_000_000L;

    private static void writeMany(MiniTarget target, IscsiDevice disk, int seed) throws Exception {
        byte[] data = new byte[1024 * 512];
        new Random(seed).nextBytes(data);
        List<CompletableFuture<Void>> writes = new ArrayList<>();
        for (int block = 0; block < 1024; block++) {
            writes.add(disk.writeAsync(block, ByteBuffer.wrap(data, block * 512, 512)));
        }
        writes.forEach(CompletableFuture::join);
        disk.flush();
        assertArrayEquals(data, target.disk);
    }

    /**
     * Fault: with several connections configured, a target that closes connections at a gap in
     * CmdSN lost one session after the other, without end.
     *
     * <p>Goal: after a few sessions the device continues with one connection, logs this once, and
     * no call fails.
     */
    @Test
    void aTargetThatNeedsOrderIsUsedWithOneConnection() throws Exception {
        try (MiniTarget target = new MiniTarget(1024).withoutWait();
                Logged log = new Logged(target.portal(), SETTLES)) {
            target.writeCache = true;
            target.wantsOrder = true;
            try (IscsiDevice disk = IscsiDevice.open(target.url(), FOUR)) {
                assertEquals(4, disk.connections());
                int rounds = 0;
                while (log.count(SETTLES) == 0) {
                    writeMany(target, disk, rounds++);
                    assertTrue(target.sessions.get() <= 1 + Quirks.ORDER_LOSSES_MAX);
                    assertTrue(rounds < 1000, "commands of four connections came in order");
                }
                int sessions = target.sessions.get();
                assertEquals(1 + Quirks.ORDER_LOSSES_MAX, sessions);
                writeMany(target, disk, rounds);
                assertEquals(1, disk.connections());
                assertEquals(sessions, target.sessions.get());
                assertEquals(0, disk.losses());
            }
            assertEquals(1, log.count(SETTLES));
        }
    }

    /**
     * Fault: a refused further connection was tried again every two seconds, for ever.
     *
     * <p>Goal: after {@link Quirks#RETRIES_MAX} failures the session continues with its other
     * connections and logs this once; later sessions begin with the same number.
     */
    @Test
    void retriesOfARefusedConnectionAreBounded() throws Exception {
        try (MiniTarget target = new MiniTarget(1024).withoutWait();
                Logged log = new Logged(target.portal(), SETTLES);
                IscsiDevice disk = IscsiDevice.open(target.url(), FOUR)) {
            disk.read(0, new byte[512]);
            AtomicInteger refused = new AtomicInteger();
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof LoginRequest login && login.tsih() != 0) {
                    refused.incrementAndGet();
                    throw new EOFException("no further connection");
                }
                return false;
            };
            target.wires.get(3).cut();
            String message = log.await().getMessage();
            assertTrue(message.contains("3 of 4 connections"), message);
            // The loss itself is the first of the failures.
            assertEquals(Quirks.RETRIES_MAX - 1, refused.get());
            writeMany(target, disk, 1);
            assertEquals(3, disk.connections());
            target.script = (wire, pdu, data) -> false;
            target.cutAll();
            writeMany(target, disk, 2);
            assertEquals(3, disk.connections());
            assertEquals(2, target.sessions.get());
            assertEquals(1, log.count(SETTLES));
        }
    }

    /**
     * Fault: a further connection that is dropped each time was made again for ever.
     *
     * <p>Goal: it is handled like a refused one.
     */
    @Test
    void retriesOfADroppedConnectionAreBounded() throws Exception {
        try (MiniTarget target = new MiniTarget(1024).withoutWait();
                Logged log = new Logged(target.portal(), SETTLES);
                IscsiDevice disk = IscsiDevice.open(target.url(), FOUR)) {
            disk.read(0, new byte[512]);
            for (int logins = 4; log.count(SETTLES) == 0; logins++) {
                target.wires.getLast().cut();
                while (target.logins.get() == logins && log.count(SETTLES) == 0) {
                    Thread.onSpinWait();
                }
                while (disk.connections() < 4 && log.count(SETTLES) == 0) {
                    Thread.onSpinWait();
                }
                assertTrue(logins < 100, "connections are retried without end");
            }
            assertEquals(4 + Quirks.RETRIES_MAX - 1, target.logins.get());
            writeMany(target, disk, 1);
            assertEquals(3, disk.connections());
            assertEquals(1, target.sessions.get());
        }
    }

    /**
     * Fault: a target that ends the whole session at the login of a further connection caused an
     * endless series of sessions, each lost again.
     *
     * <p>Goal: after {@link Quirks#JOIN_LOSSES_MAX} of them the device continues with one
     * connection, logs this once, and no call fails.
     */
    @Test
    void aTargetThatEndsJoinedSessionsIsUsedWithOneConnection() throws Exception {
        for (boolean answers : new boolean[] {false, true}) {
            try (MiniTarget target = new MiniTarget(1024).withoutWait();
                    Logged log = new Logged(target.portal(), SETTLES)) {
                target.script = (wire, pdu, data) -> {
                    boolean ends = pdu instanceof LoginRequest login && login.tsih() != 0;
                    if (ends && answers) {
                        wire.handle(pdu, data);
                    }
                    if (ends) {
                        target.cutAll();
                    }
                    return ends;
                };
                try (IscsiDevice disk = IscsiDevice.open(target.url(), FOUR)) {
                    for (int round = 0; round < 3; round++) {
                        writeMany(target, disk, round);
                    }
                    assertEquals(1, disk.connections());
                    int most = 1 + Quirks.JOIN_LOSSES_MAX + Quirks.ORDER_LOSSES_MAX;
                    assertTrue(target.sessions.get() <= most, target.sessions + " sessions");
                    int sessions = target.sessions.get();
                    writeMany(target, disk, 3);
                    assertEquals(sessions, target.sessions.get());
                }
                assertEquals(1, log.count(SETTLES));
            }
        }
    }

    /** Goal: failures that are far apart, or of an unreachable target, are not counted together. */
    @Test
    void onlyFailuresInARowCount() {
        Quirks quirks = new Quirks(FOUR);
        long now = Long.MAX_VALUE - MINUTE;
        for (int time = 0; time < 10 * Quirks.RETRIES_MAX; time++) {
            assertTrue(quirks.noteRetry("h", 2, "far apart", now));
            quirks.noteLoss("h", "far apart", now);
            now += Quirks.TOGETHER_NANOS + 1;
        }
        assertEquals(4, quirks.connections());
        now += Quirks.TOGETHER_NANOS + 1;
        for (int time = 1; time < Quirks.RETRIES_MAX; time++) {
            assertTrue(quirks.noteRetry("h", 2, "in a row", now));
            now += MINUTE;
        }
        assertFalse(quirks.noteRetry("h", 2, "in a row", now));
        assertEquals(2, quirks.connections());
        quirks.noteLoss("h", "the target was unreachable", now);
        for (int time = 0; time < 2 * Quirks.JOIN_LOSSES_MAX; time++) {
            quirks.noteJoinedEnd("h", 0, "soon", now);
            quirks.noteJoinedEnd("h", Quirks.JOIN_LOSS_NANOS, "it lasted", now);
        }
        quirks.noteJoinedEnd("h", 0, "soon", now);
        quirks.noteJoinedEnd("h", 0, "the target was unreachable", now);
        quirks.forgetLosses();
        for (int time = 0; time < Quirks.ORDER_LOSSES_MAX; time++) {
            assertEquals(2, quirks.connections());
            quirks.noteLoss("h", "in a row", now);
        }
        assertEquals(1, quirks.connections());
        Quirks joined = new Quirks(FOUR);
        for (int time = 0; time < Quirks.JOIN_LOSSES_MAX; time++) {
            assertEquals(4, joined.connections());
            joined.noteJoinedEnd("h", 0, "in a row", now);
        }
        assertEquals(1, joined.connections());
    }

    /**
     * Fault: targets that close the connection on unknown keys could not be used.
     *
     * <p>Goal: the first login detects such a target, which is then used without the keys of RFC
     * 7144, also in later sessions; an option has the same effect from the start.
     */
    @Test
    void oldTargetsAreOfferedNoNewKeys() throws Exception {
        for (Key key : List.of(Key.TASK_REPORTING, Key.PROTOCOL_LEVEL)) {
            try (MiniTarget target = new MiniTarget(1024).withoutWait();
                    Logged log = new Logged(target.portal(), "accepts logins without them")) {
                target.closesOn = Set.of(key);
                try (IscsiDevice disk = IscsiDevice.open(target.url(), FOUR)) {
                    log.await();
                    assertEquals(3 + 3, target.logins.get(), "two logins more, and three join");
                    target.cutAll();
                    writeMany(target, disk, 1);
                    assertEquals(2, target.sessions.get());
                    assertEquals(6 + 4, target.logins.get(), "it is remembered");
                }
                IscsiOptions old = IscsiOptions.builder()
                        .protocolLevel(IscsiOptions.PROTOCOL_LEVEL_MIN).build();
                try (IscsiDevice disk = IscsiDevice.open(target.url(), old)) {
                    writeMany(target, disk, 2);
                    assertEquals(10 + 1, target.logins.get());
                }
                assertEquals(1, log.count("accepts logins without them"));
            }
        }
    }

    /** Goal: only the two existing levels are accepted. */
    @Test
    void anUnknownProtocolLevelIsRefused() {
        for (int level : new int[] {-1, 0, 3}) {
            assertThrows(IllegalArgumentException.class,
                    () -> IscsiOptions.builder().protocolLevel(level));
        }
    }

    /**
     * Goal: a target that drops every login is not taken for an old one, and not retried for ever.
     */
    @Test
    void aTargetThatDropsEveryLoginIsReported() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            target.closesOn = Set.of(Key.INITIATOR_NAME);
            DeviceOpenException failure = assertThrows(DeviceOpenException.class,
                    () -> IscsiDevice.open(target.url()));
            assertTrue(
                    failure.getMessage().contains("closed the connection"), failure.getMessage());
            assertEquals(3, target.logins.get());
        }
    }

    /** Cuts connections at a login, and records whether each login names newer keys. */
    private static final class CutLogins implements MiniTarget.Script {
        final List<Boolean> named = new CopyOnWriteArrayList<>();
        private final AtomicInteger left = new AtomicInteger();
        /** Restricts the cuts to logins with newer keys. */
        private volatile boolean namedOnly;

        /** Cuts the next {@code logins} logins. */
        void cut(int logins, boolean withNewerKeysOnly) {
            namedOnly = withNewerKeysOnly;
            left.set(logins);
        }

        @Override
        public boolean handle(MiniConnection wire, Pdu pdu, byte[] data) throws EOFException {
            if (pdu instanceof LoginRequest) {
                boolean names = new String(data, StandardCharsets.UTF_8).contains("TaskReporting=");
                named.add(names);
                if ((names || !namedOnly) && left.getAndUpdate(n -> Math.max(n - 1, 0)) > 0) {
                    throw new EOFException("cut by chance");
                }
            }
            return false;
        }
    }

    /**
     * Fault: a single login cut by chance made the initiator leave out TaskReporting and
     * iSCSIProtocolLevel for good, although the target supports them.
     *
     * <p>Goal: the login is repeated with these keys, both the first and later ones.
     */
    @Test
    void oneCutLoginDoesNotDisableNewerKeys() throws Exception {
        try (MiniTarget target = new MiniTarget(1024).withoutWait()) {
            CutLogins logins = new CutLogins();
            logins.cut(1, false);
            target.script = logins;
            try (IscsiDevice disk = IscsiDevice.open(target.url())) {
                assertEquals(List.of(true, true), logins.named);
                logins.cut(1, false);
                target.cutAll();
                writeMany(target, disk, 1);
                assertEquals(List.of(true, true, true, true), logins.named);
            }
        }
    }

    /**
     * Fault: findings about a target were kept for good, also if the target was unreachable and
     * came back as a newer version.
     *
     * <p>Goal: after a failed login without TaskReporting and iSCSIProtocolLevel, the next login
     * names them.
     */
    @Test
    void newerKeysAreOfferedAgainAfterAFailedLogin() throws Exception {
        try (MiniTarget target = new MiniTarget(1024).withoutWait()) {
            CutLogins logins = new CutLogins();
            logins.cut(TargetConnector.OFFERS_MAX, true);
            target.script = logins;
            try (IscsiDevice disk = IscsiDevice.open(target.url())) {
                assertEquals(List.of(true, true, false), logins.named);
                logins.cut(1, false);
                target.cutAll();
                writeMany(target, disk, 1);
                assertEquals(List.of(true, true, false, false, true), logins.named);
            }
        }
    }

    /**
     * Fault: discovery failed if the target assigned no TSIH to a discovery session.
     *
     * <p>Goal: the targets are returned, with a warning; a normal session without a TSIH is
     * refused.
     */
    @Test
    void discoveryNeedsNoTsih() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                Logged log = new Logged(target.portal(), "no TSIH")) {
            target.tsih = 0;
            assertEquals(MiniTarget.NAME,
                    Discovery.sendTargets("iscsi://" + target.portal()).getFirst().name());
            log.await();
            assertThrows(DeviceOpenException.class, () -> IscsiDevice.open(target.url()));
        }
    }
}

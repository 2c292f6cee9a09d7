package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Cdb;

/** Sending while the socket is full or fails, and command timeouts. */
final class SendingTest {
    private static final long MINUTE = 60_000_000_000L;

    private static Session session(MiniTarget target) throws Exception {
        TargetConnector route = TargetConnector.to(
                IscsiUrl.parse(target.url()), Optional.of(MiniTarget.NAME),
                IscsiOptions.defaults(), TargetConnector.randomIsid());
        String portal = target.portal();
        int port = Integer.parseInt(portal.substring(portal.indexOf(':') + 1));
        return Session.open(route, 1, new Login(portal, System.nanoTime() + MINUTE), portal,
                new InetSocketAddress(InetAddress.getLoopbackAddress(), port),
                new UnitAttentions());
    }

    /** Goal: a command that has just begun is not overdue by the deadline of the previous one. */
    @Test
    void slotTimesAreOfOneUse() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            Session session = session(target);
            Task task = session.take(0);
            Tasks tasks = task.home.tasks();
            task.then(done -> { });
            assertNull(tasks.overdue(System.nanoTime()), "it has not been sent yet");
            Tasks.Use late = tasks.overdue(System.nanoTime() + 60 * MINUTE);
            assertEquals(task, late.task());
            assertTrue(task.isExpired() && task.isUnderWay(late.use()));
            assertNull(tasks.overdue(System.nanoTime() + 60 * MINUTE), "found once");
            task.refused();
            task.then(done -> { });
            assertFalse(task.isExpired());
            assertFalse(task.isUnderWay(late.use()), "an abort of the last use says nothing");
            assertNotEquals(late.use(), tasks.overdue(System.nanoTime() + 60 * MINUTE).use());
            task.refused();
            tasks.give(task);
            session.logOut(MINUTE);
        }
    }

    /**
     * Fault: a defect of this initiator was logged in one line, without the exception.
     *
     * <p>Goal: a defect ends the session, is the cause of its callers' exceptions, and is logged
     * with its stack trace.
     */
    @Test
    void anInternalErrorIsReportedWithItsCause() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                Logged log = new Logged(target.portal(), "internal error of this initiator")) {
            Session session = session(target);
            Task task = session.take(0);
            Cdb.testUnitReady(task.cdb());
            // Without a stack trace, because the thread that it ends prints it.
            RuntimeException bug = new RuntimeException("made for this test", null, false, false) {
                private static final long serialVersionUID = 1L;
            };
            task.then(done -> {
                throw bug;
            });
            assertTrue(task.home.submit(task));
            assertSame(bug, log.await().getThrown());
            while (!session.isOver()) {
                Thread.onSpinWait();
            }
            assertSame(bug, session.why().getCause());
            assertEquals(Kind.SESSION_LOST, session.why().kind());
        }
    }

    /** Goal: commands are aborted in time, and the session ends, while the socket is full. */
    @Test
    void timersRunWithoutReceivedData() throws Exception {
        IscsiOptions hasty = IscsiOptions.builder().commandTime(Duration.ofSeconds(5))
                .abortTime(Duration.ofMillis(200)).queueDepth(64).build();
        CompletableFuture<Void> hold = new CompletableFuture<>();
        try (MiniTarget target = new MiniTarget(512)) {
            target.offer = target.offer.toBuilder().initialR2t(false).immediateData(true)
                    .firstBurstBytes(262_144).maxRecvDataSegmentBytes(262_144).build();
            try (IscsiDevice disk = IscsiDevice.open(target.url(), hasty)) {
                // Examine the unit now, not while the socket is full.
                disk.write(0, new byte[512]);
                MiniConnection first = target.wires.getLast();
                target.script = (wire, pdu, data) -> {
                    if (wire == first) {
                        hold.join();
                    }
                    return false;
                };
                List<CompletableFuture<Void>> writes = new ArrayList<>();
                for (int index = 0; index < 64; index++) {
                    writes.add(disk.writeAsync(0, ByteBuffer.allocateDirect(262_144)));
                }
                Throwable why = writes.getFirst().handle((done, thrown) -> thrown).join();
                // A command that had not expired would have been sent again and succeeded.
                assertEquals(Kind.TIMED_OUT,
                        IscsiException.in((DeviceException) why).orElseThrow().kind());
                writes.forEach(each -> each.handle((done, thrown) -> thrown).join());
            } finally {
                hold.complete(null);
            }
        }
    }
}

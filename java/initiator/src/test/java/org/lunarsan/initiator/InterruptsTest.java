package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.HotSpotDiagnosticMXBean;
import com.sun.management.HotSpotDiagnosticMXBean.ThreadDumpFormat;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.initiator.IscsiUrl.Portal;
import org.lunarsan.iscsi.pdu.LogoutRequest;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.TextRequest;

/** Threads that are interrupted while they open a device or discover targets. */
final class InterruptsTest {
    /** Far beyond the waits of the tests, so that only the interrupt ends a call. */
    private static final Duration LONG = Duration.ofHours(1);
    private static final Duration LIMIT = Duration.ofSeconds(60);
    private static final IscsiOptions LONG_WAITS = IscsiOptions.builder().loginTime(LONG)
            .commandTime(LONG).pingInterval(Duration.ZERO).logoutTime(LONG).build();
    private static final byte READ_CAPACITY_16 = (byte) 0x9e;

    @TempDir Path folder;
    private int dumps;

    /** The call that is interrupted. */
    private interface BlockingCall {
        void run() throws IOException;
    }

    /** A thread that makes a call, and the exception of the call. */
    private record CallingThread(Thread thread, CompletableFuture<Throwable> thrown) {
        static CallingThread start(Thread.Builder builder, BlockingCall call) {
            CompletableFuture<Throwable> thrown = new CompletableFuture<>();
            return new CallingThread(builder.start(() -> {
                try {
                    call.run();
                    thrown.complete(null);
                } catch (IOException | RuntimeException | Error failure) {
                    boolean kept = Thread.currentThread().isInterrupted();
                    thrown.complete(kept ? failure : new AssertionError("not kept", failure));
                }
            }), thrown);
        }

        void interrupt() throws InterruptedException {
            thread.interrupt();
            assertTrue(thread.join(LIMIT), "the call did not end");
            Throwable reported = thrown.join();
            assertInstanceOf(DeviceOpenException.class, reported, () -> "not " + reported);
            assertEquals(Kind.INTERRUPTED, IscsiException.in(reported).orElseThrow().kind());
        }
    }

    private static List<Thread.Builder> callers() {
        return List.of(Thread.ofPlatform(), Thread.ofVirtual());
    }

    private static List<BlockingCall> blockingCalls(String portal) {
        String url = "iscsi://" + portal;
        return List.of(() -> IscsiDevice.open(url + "/" + MiniTarget.NAME + "/0", LONG_WAITS),
                () -> Discovery.sendTargets(url, LONG_WAITS));
    }

    /** True if there is a thread, platform or virtual, of a session or login with this portal. */
    private boolean hasThreads(String portal) throws IOException {
        Path dump = folder.resolve("threads" + dumps++);
        ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class)
                .dumpThreads(dump.toString(), ThreadDumpFormat.TEXT_PLAIN);
        return Files.readString(dump).contains("\"iscsi " + portal);
    }

    /** Waits for the end of threads that may still be ending. */
    private void assertEnds(String portal) throws IOException {
        long until = System.nanoTime() + LIMIT.toNanos();
        while (hasThreads(portal)) {
            assertTrue(until - System.nanoTime() > 0, "threads are left");
            Thread.onSpinWait();
        }
    }

    /** Goal: an unanswered login ends with its caller, including its socket and threads. */
    @Test
    void anUnansweredLoginEnds() throws Exception {
        try (ServerSocket silentServer = new ServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
            String portal = "127.0.0.1:" + silentServer.getLocalPort();
            for (Thread.Builder caller : callers()) {
                for (BlockingCall call : blockingCalls(portal)) {
                    CallingThread calling = CallingThread.start(caller, call);
                    try (Socket socket = silentServer.accept()) {
                        assertTrue(socket.getInputStream().read() >= 0);
                        assertTrue(hasThreads(portal), "else the test sees none");
                        calling.interrupt();
                        socket.setSoTimeout((int) LIMIT.toMillis());
                        socket.getInputStream().readAllBytes();
                    }
                    assertEnds(portal);
                }
            }
        }
    }

    /** Goal: a connection that is not accepted is not waited for. */
    @Test
    void aConnectionThatIsNotAcceptedEnds() throws Exception {
        List<Socket> queued = new ArrayList<>();
        try (ServerSocket full = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            while (fits(full, queued)) {
                assertTrue(queued.size() < 100, "the queue of the server never fills");
            }
            String portal = "127.0.0.1:" + full.getLocalPort();
            for (BlockingCall call : blockingCalls(portal)) {
                CallingThread calling = CallingThread.start(Thread.ofPlatform(), call);
                while (!hasThreads(portal)) {
                    Thread.onSpinWait();
                }
                calling.interrupt();
                assertEnds(portal);
            }
        } finally {
            for (Socket socket : queued) {
                socket.close();
            }
        }
    }

    private static boolean fits(ServerSocket server, List<Socket> queued) throws IOException {
        Socket socket = new Socket();
        queued.add(socket);
        try {
            socket.connect(server.getLocalSocketAddress(), 200);
            return true;
        } catch (SocketTimeoutException exception) {
            return false;
        }
    }

    /** Goal: a query in the new session ends as well, even if the logout is not answered. */
    @Test
    void anUnansweredQueryEnds() throws Exception {
        for (Thread.Builder caller : callers()) {
            for (boolean ignoresLogout : new boolean[] {false, true}) {
                endsAtTheExchange(caller, 0, ignoresLogout);
                endsAtTheExchange(caller, 1, ignoresLogout);
            }
        }
    }

    private void endsAtTheExchange(Thread.Builder caller, int call, boolean ignoresLogout)
            throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            CountDownLatch queryArrived = new CountDownLatch(1);
            CountDownLatch logoutArrived = new CountDownLatch(1);
            target.script = (wire, pdu, data) -> {
                if (isQuery(pdu)) {
                    queryArrived.countDown();
                    return true;
                }
                if (pdu instanceof LogoutRequest) {
                    logoutArrived.countDown();
                    return ignoresLogout;
                }
                return false;
            };
            CallingThread calling =
                    CallingThread.start(caller, blockingCalls(target.portal()).get(call));
            queryArrived.await();
            calling.interrupt();
            logoutArrived.await();
            assertEnds(target.portal());
            while (!target.wires.isEmpty()) {
                Thread.onSpinWait();
            }
        }
    }

    private static boolean isQuery(Pdu pdu) {
        return pdu instanceof TextRequest
                || pdu instanceof ScsiCommand command && command.cdb()[0] == READ_CAPACITY_16;
    }

    /** Goal: an interrupted thread does not log in; afterwards the same device can be opened. */
    @Test
    void interruptedThreadsStartNothing() throws Exception {
        try (MiniTarget target = new MiniTarget(64);
                IscsiDevice disk = IscsiDevice.of(IscsiUrl.parse(target.url()), LONG_WAITS)) {
            Thread.currentThread().interrupt();
            DeviceOpenException reported = assertThrows(DeviceOpenException.class, disk::open);
            assertTrue(Thread.interrupted(), "the interrupt is the caller's");
            assertEquals(Kind.INTERRUPTED, IscsiException.in(reported).orElseThrow().kind());
            assertEquals(0, target.logins.get());
            disk.open();
            Thread.currentThread().interrupt();
            disk.read(0, new byte[512]);
            assertTrue(Thread.interrupted(), "an open device keeps the interrupt");
        }
    }

    /** Goal: a wait for another thread that opens the device, or for a name, ends as well. */
    @Test
    void interruptedThreadsDoNotWaitForOthers() throws Exception {
        try (ServerSocket silentServer = new ServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
            String portal = "127.0.0.1:" + silentServer.getLocalPort();
            IscsiDevice disk = IscsiDevice.of(IscsiUrl.parse(
                    "iscsi://" + portal + "/" + MiniTarget.NAME + "/0"), LONG_WAITS);
            CallingThread first = CallingThread.start(Thread.ofPlatform(), disk::open);
            try (Socket socket = silentServer.accept()) {
                assertTrue(socket.getInputStream().read() >= 0);
                CallingThread second = CallingThread.start(Thread.ofPlatform(), disk::open);
                while (second.thread().getState() != Thread.State.WAITING) {
                    Thread.onSpinWait();
                }
                second.interrupt();
                assertFalse(first.thrown().isDone());
                first.interrupt();
            }
            assertEnds(portal);
        }
        CompletableFuture<InetAddress[]> never = new CompletableFuture<>();
        Names names = new Names(host -> never.join());
        Thread.currentThread().interrupt();
        Failure reported = assertThrows(Failure.class, () -> names.addresses(
                Portal.parse("somewhere:3260"), System.nanoTime() + LIMIT.toNanos()));
        assertTrue(Thread.interrupted());
        assertEquals(Kind.INTERRUPTED, reported.kind());
        never.complete(new InetAddress[0]);
    }
}

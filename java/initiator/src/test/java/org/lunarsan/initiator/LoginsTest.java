package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.initiator.IscsiUrl.Portal;
import org.lunarsan.initiator.MiniTarget.Chap;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.login.LoginException;
import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.session.LoginNumbers;
import org.lunarsan.iscsi.text.Digest;

/** Logins: authentication, redirects, refusals, discovery. */
final class LoginsTest {
    private static final byte[] SECRET = bytes("hunter2-of-the-initiator");
    private static final byte[] OTHER = bytes("hunter3-of-the-target");

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void assertWorks(MiniTarget target, IscsiOptions options)
            throws DeviceException {
        try (IscsiDevice disk = IscsiDevice.open(target.url(), options)) {
            byte[] data = {1, 2, 3};
            byte[] block = Arrays.copyOf(data, 512);
            disk.write(3, block);
            byte[] found = new byte[512];
            disk.read(3, found);
            assertArrayEquals(block, found);
        }
    }

    private static IscsiException refused(MiniTarget target, IscsiOptions options) {
        DeviceOpenException thrown = assertThrows(DeviceOpenException.class,
                () -> IscsiDevice.open(target.url(), options));
        assertFalse(thrown.toString().contains("hunter"), thrown.toString());
        return IscsiException.in(thrown).orElseThrow();
    }

    /** Goal: each CHAP algorithm authenticates the initiator, alone and mutually. */
    @Test
    void allAlgorithmsAuthenticate() throws Exception {
        for (ChapAlgorithm algorithm : ChapAlgorithm.values()) {
            try (MiniTarget target = new MiniTarget(64)) {
                target.chap = Optional.of(new Chap(algorithm, "vm", "hunter2-of-the-initiator",
                        "lunar", "hunter3-of-the-target"));
                IscsiOptions.Builder options =
                        IscsiOptions.builder().chap("vm", SECRET).chapAlgorithms(
                                List.of(algorithm));
                assertWorks(target, options.build());
                assertWorks(target, options.mutualChap("lunar", OTHER).build());
            }
        }
    }

    /**
     * Goal: a wrong secret, a wrong name and a target that cannot authenticate itself are refused.
     */
    @Test
    void wrongProofsAreRefused() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            target.chap = Optional.of(new Chap(ChapAlgorithm.SHA3_256, "vm",
                    "hunter2-of-the-initiator", "lunar", "hunter3-of-the-target"));
            IscsiException wrong =
                    refused(target, IscsiOptions.builder().chap("vm", OTHER).build());
            assertEquals(Kind.AUTHENTICATION, wrong.kind());
            LoginException status = assertInstanceOf(LoginException.class, wrong.getCause());
            assertEquals(LoginStatus.AUTHENTICATION_FAILURE, status.status());
            assertEquals(Kind.AUTHENTICATION,
                    refused(target, IscsiOptions.builder().chap("wm", SECRET).build()).kind());
            assertEquals(Kind.AUTHENTICATION, refused(target, IscsiOptions.defaults()).kind());
            refused(target, IscsiOptions.builder().chap("vm", SECRET)
                    .mutualChap("lunar", bytes("another-secret-of-it")).build());
            assertEquals(0, target.sessions.get(), "a login was accepted");
        }
    }

    /** Goal: without credentials the message says once what failed, why, and what to do. */
    @Test
    void aMissingProofIsReportedOnce() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            target.chap = Optional.of(new Chap(ChapAlgorithm.SHA3_256, "vm",
                    "hunter2-of-the-initiator", null, null));
            IscsiException missing = refused(target, IscsiOptions.defaults());
            assertEquals(target.url() + ": open: login to " + target.portal() + " failed: "
                    + MiniTarget.NAME + " responded with status AUTHENTICATION_FAILURE (0201): the"
                    + " target requires CHAP, but no CHAP user is configured (name user and secret"
                    + " in the options, or write iscsi://USER@HOST with the secret in"
                    + " LUNAR_CHAP_SECRET)",
                    missing.getMessage());
            IscsiException wrong =
                    refused(target, IscsiOptions.builder().chap("vm", OTHER).build());
            assertEquals(1, wrong.getMessage().split("check the CHAP", -1).length - 1,
                    wrong.getMessage());
        }
    }

    /** Goal: secrets can come from a file; short, missing and equal secrets are refused. */
    @Test
    void secretsAreChecked(@TempDir Path folder) throws Exception {
        Path file = Files.writeString(folder.resolve("secret"), "hunter2-of-the-initiator\n");
        try (MiniTarget target = new MiniTarget(64)) {
            target.chap = Optional.of(new Chap(ChapAlgorithm.SHA256, "vm",
                    "hunter2-of-the-initiator", null, null));
            assertWorks(target, IscsiOptions.builder().chapUser("vm").chapSecretFile(file).build());
            int before = target.logins.get();
            IscsiOptions.Builder options = IscsiOptions.builder();
            assertEquals(Kind.AUTHENTICATION,
                    refused(target, options.chap("vm", bytes("hunter")).build()).kind());
            options.chap("vm", SECRET).mutualChap("lunar", SECRET);
            assertTrue(refused(target, options.build()).getMessage().contains("same"));
            assertEquals(Kind.AUTHENTICATION, refused(target, IscsiOptions.builder()
                    .chapUser("vm").chapSecretFile(folder.resolve("none")).build()).kind());
            assertEquals(before, target.logins.get(), "nothing was sent");
        }
    }

    /** Goal: the digests of the URL, else of the options, are required. */
    @Test
    void digestsAreRequired() throws Exception {
        for (boolean both : new boolean[] {false, true}) {
            try (MiniTarget target = new MiniTarget(64)) {
                IscsiOptions options = IscsiOptions.builder().dataDigest(Digest.CRC32C)
                        .headerDigest(both ? Digest.CRC32C : Digest.NONE).build();
                String query = both ? "" : "?data_digest=crc32c&header_digest=crc32c";
                try (IscsiDevice disk = IscsiDevice.open(target.url() + query, options)) {
                    disk.write(0, new byte[512]);
                    assertTrue(target.wires.getFirst().digests.header());
                    assertTrue(target.wires.getFirst().digests.data());
                }
            }
        }
    }

    /** Goal: redirects are followed up to a limit. */
    @Test
    void redirectsAreFollowed() throws Exception {
        try (MiniTarget first = new MiniTarget(64); MiniTarget second = new MiniTarget(64)) {
            for (int status : new int[] {LoginStatus.TARGET_MOVED_TEMPORARILY,
                    LoginStatus.TARGET_MOVED_PERMANENTLY}) {
                first.loginStatus = status;
                first.redirect = second.portal() + ",1";
                assertWorks(first, IscsiOptions.defaults());
            }
            assertEquals(2, second.sessions.get());
            first.redirect = first.portal();
            assertEquals(Kind.LOGIN, refused(first, IscsiOptions.defaults()).kind());
            assertEquals(2 + TargetConnector.REDIRECTS_MAX + 1, first.logins.get());
            first.redirect = "nowhere:0:0";
            assertEquals(Kind.LOGIN, refused(first, IscsiOptions.defaults()).kind());
        }
    }

    /** Goal: a refusal by the target is reported with its status. */
    @Test
    void refusalsAreReported() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            for (int status : new int[] {LoginStatus.NOT_FOUND, LoginStatus.SERVICE_UNAVAILABLE,
                    LoginStatus.UNSUPPORTED_VERSION, 0x0777}) {
                target.loginStatus = status;
                IscsiException refusal = refused(target, IscsiOptions.defaults());
                assertEquals(Kind.LOGIN, refusal.kind());
                assertEquals(status, ((LoginException) refusal.getCause()).status());
            }
        }
    }

    /** Goal: a missing or silent target is reported in bounded time. */
    @Test
    void aSilentTargetTimesOut() throws Exception {
        InetAddress here = InetAddress.getLoopbackAddress();
        try (ServerSocket mute = new ServerSocket(0, 5, here)) {
            String url = urlOf(mute.getLocalPort());
            IscsiOptions hasty =
                    IscsiOptions.builder().loginTime(Duration.ofSeconds(2)).build();
            DeviceException late =
                    assertThrows(DeviceException.class, () -> IscsiDevice.open(url, hasty));
            assertTrue(late.getMessage().contains("in time"), late.getMessage());
        }
        // A bound port belongs to no other socket, and no server listens on it.
        try (Socket bound = new Socket()) {
            bound.bind(new InetSocketAddress(here, 0));
            DeviceException none = assertThrows(DeviceException.class,
                    () -> IscsiDevice.open(urlOf(bound.getLocalPort())));
            assertEquals(Kind.CONNECT, IscsiException.in(none).orElseThrow().kind());
        }
    }

    /**
     * Goal: a socket that the system has connected to itself is refused, and its port is at once
     * free for a server; another connection from the same address is accepted.
     */
    @Test
    void connectionsToThemselvesAreRefused() throws Exception {
        InetSocketAddress any = new InetSocketAddress(InetAddress.getLoopbackAddress(), 0);
        try (ServerSocket server = new ServerSocket(0, 5, any.getAddress());
                SocketChannel other = SocketChannel.open(server.getLocalSocketAddress())) {
            Login.refuseSelfConnection(other);
        }
        SocketAddress itself;
        try (SocketChannel channel = SocketChannel.open().bind(any)) {
            itself = channel.getLocalAddress();
            assertTrue(channel.connect(itself));
            assertThrows(ConnectException.class, () -> Login.refuseSelfConnection(channel));
        }
        try (SocketChannel again = SocketChannel.open()) {
            again.bind(itself);
        }
    }

    private static String urlOf(int port) {
        return "iscsi://127.0.0.1:" + port + "/" + MiniTarget.NAME + "/0";
    }

    /**
     * Goal: waits for a target that accepts no data, and for a hanging name server, are bounded.
     */
    @Test
    void everyLoginStepHasATimeout() throws Exception {
        CompletableFuture<Void> never = new CompletableFuture<>();
        Portal portal = Portal.parse("somewhere:3260");
        AtomicInteger lookups = new AtomicInteger();
        CountDownLatch isAsked = new CountDownLatch(1);
        Names names = new Names(host -> {
            lookups.incrementAndGet();
            isAsked.countDown();
            never.join();
            return new InetAddress[] {InetAddress.getLoopbackAddress()};
        });
        for (int round = 0; round < 2; round++) {
            Failure late = assertThrows(Failure.class,
                    () -> names.addresses(portal, System.nanoTime() + 50_000_000L));
            assertEquals(Kind.CONNECT, late.kind());
            assertTrue(isAsked.await(1, TimeUnit.MINUTES), "nobody looks it up");
        }
        assertEquals(1, lookups.get(), "not one more for each try");
        never.complete(null);
        TargetConnector route = TargetConnector.to(
                IscsiUrl.parse("iscsi://h/" + MiniTarget.NAME + "/0"),
                Optional.of(MiniTarget.NAME), IscsiOptions.defaults(), 1);
        try (ServerSocket mute = new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
                SocketChannel channel = SocketChannel.open(mute.getLocalSocketAddress())) {
            channel.configureBlocking(false);
            ByteBuffer much = ByteBuffer.allocate(1 << 16);
            while (channel.write(much.clear()) > 0 || !isFull(channel)) {
                Thread.onSpinWait();
            }
            channel.configureBlocking(true);
            Login login = new Login("h", System.nanoTime() + 200_000_000L);
            Failure late = assertThrows(Failure.class, () -> login.run(channel,
                    route.loginOptions(0, new LoginNumbers(1, 0, 1))));
            assertTrue(late.getMessage().contains("in time"), late.getMessage());
        }
    }

    /** True if the socket still accepts nothing after a moment. */
    private static boolean isFull(SocketChannel channel) throws IOException {
        try (Selector selector = channel.provider().openSelector()) {
            channel.register(selector, SelectionKey.OP_WRITE);
            return selector.select(100) == 0;
        }
    }

    /** Goal: discovery returns the targets, and leaves no session behind. */
    @Test
    void discoveryNamesTargets() throws IOException {
        try (MiniTarget target = new MiniTarget(64)) {
            List<Discovery.Target> found = Discovery.sendTargets("iscsi://" + target.portal());
            assertEquals(List.of(new Discovery.Target(MiniTarget.NAME,
                    List.of(new Discovery.TargetPortal(target.portal(), 1)))), found);
        }
    }
}

package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.Test;
import org.lunarsan.initiator.IscsiUrl.Portal;
import org.lunarsan.iscsi.text.Digest;

/** Null arguments are reported by name where they are passed. */
final class NullsTest {
    private static final byte[] SECRET = new byte[16];
    private static final Path FILE = Path.of("secret");

    /** A call that rejects null. */
    private interface Call {
        void run() throws Exception;
    }

    private static void assertNames(String argument, Call call) {
        NullPointerException missing = assertThrows(NullPointerException.class, call::run);
        assertEquals(argument, missing.getMessage());
    }

    private static void assertNamesBuffers(IscsiDevice device) {
        assertNames("buffer", () -> device.read(0, (ByteBuffer) null));
        assertNames("buffer", () -> device.write(0, (ByteBuffer) null));
        assertNames("buffer", () -> device.read(0, (byte[]) null));
        assertNames("buffer", () -> device.write(0, (byte[]) null));
        assertNames("buffer", () -> device.readAsync(0, null));
        assertNames("buffer", () -> device.writeAsync(0, null));
    }

    /** Goal: a null buffer, URL or options object is named, and nothing is sent. */
    @Test
    void argumentsOfDevicesAreNamed() throws Exception {
        try (MiniTarget target = new MiniTarget(64)) {
            IscsiUrl url = IscsiUrl.parse(target.url());
            IscsiDevice disk = IscsiDevice.of(url, IscsiOptions.defaults());
            assertNamesBuffers(disk);
            assertNames("url", () -> IscsiDevice.open(null));
            assertNames("url", () -> IscsiDevice.open(null, IscsiOptions.defaults()));
            assertNames("options", () -> IscsiDevice.open(target.url(), null));
            assertNames("url", () -> IscsiDevice.of(null, IscsiOptions.defaults()));
            assertNames("options", () -> IscsiDevice.of(url, null));
            assertNames("url", () -> Discovery.sendTargets(null));
            assertNames("options", () -> Discovery.sendTargets(target.url(), null));
            assertEquals(0, target.logins.get());
            try (disk) {
                disk.open();
                assertNamesBuffers(disk);
            }
        }
        assertNames("text", () -> IscsiUrl.parse(null));
        assertNames("text", () -> IscsiUrl.isIscsiUrl(null));
        assertNames("text", () -> Portal.parse(null));
        assertNames("host", () -> new Portal(null, 3260));
        assertNames("target", () -> new IscsiUrl.Unit(null, 0));
        assertNames("user", () -> new IscsiUrl(null, null, null, null, null));
    }

    /** Goal: each null argument of an option is named. */
    @Test
    void argumentsOfOptionsAreNamed() {
        IscsiOptions.Builder builder = IscsiOptions.builder();
        assertNames("name", () -> builder.initiatorName(null));
        assertNames("user", () -> builder.chap(null, SECRET));
        assertNames("secret", () -> builder.chap("vm", null));
        assertNames("user", () -> builder.chapUser(null));
        assertNames("file", () -> builder.chapSecretFile(null));
        assertNames("user", () -> builder.mutualChap(null, SECRET));
        assertNames("secret", () -> builder.mutualChap("lunar", null));
        assertNames("user", () -> builder.mutualChapSecretFile(null, FILE));
        assertNames("file", () -> builder.mutualChapSecretFile("lunar", null));
        assertNames("algorithms", () -> builder.chapAlgorithms(null));
        assertNames("algorithms", () -> builder.chapAlgorithms(Arrays.asList(null, null)));
        assertNames("digests", () -> builder.headerDigest((Digest[]) null));
        assertNames("digests", () -> builder.dataDigest(Digest.NONE, null));
        assertNames("others", () -> builder.portals(null));
        assertNames("others", () -> builder.portals(Arrays.asList((Portal) null)));
    }

    /** Goal: each null time is named. */
    @Test
    void timesAreNamed() {
        List<BiConsumer<IscsiOptions.Builder, Duration>> waits = List.of(
                IscsiOptions.Builder::loginTime, IscsiOptions.Builder::recoveryTime,
                IscsiOptions.Builder::commandTime, IscsiOptions.Builder::pingInterval,
                IscsiOptions.Builder::pingTime, IscsiOptions.Builder::logoutTime,
                IscsiOptions.Builder::abortTime);
        waits.forEach(wait ->
                assertNames("time", () -> wait.accept(IscsiOptions.builder(), null)));
    }
}

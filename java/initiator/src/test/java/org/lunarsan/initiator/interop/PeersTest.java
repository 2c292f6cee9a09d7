package org.lunarsan.initiator.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.testkit.Seed;
import org.lunarsan.initiator.Discovery;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.text.Digest;

/** tgt and istgt: digests, discovery, authentication, integrity. */
@Tag("interop")
final class PeersTest {
    private static final int STEPS = 300;

    /** Goal: tgt stores our data, with digests, and accepts our CHAP response with MD5. */
    @Test
    void tgtReturnsWrittenData(@TempDir Path folder) {
        Seed.run(random -> {
            try (Tgt tgt = new Tgt(FileContract.zeroes(folder.resolve("tgt.img")))) {
                tgt.allowDigests();
                assertEquals(Tgt.TARGET,
                        Discovery.sendTargets("iscsi://" + tgt.address()).getFirst().name());
                IscsiOptions digests = IscsiOptions.builder().headerDigest(Digest.CRC32C)
                        .dataDigest(Digest.CRC32C).build();
                work(tgt.url(), digests, random.nextLong());
                tgt.requireChap("vm", "hunter2-of-the-initiator");
                IscsiOptions proof = IscsiOptions.builder()
                        .chap("vm", "hunter2-of-the-initiator".getBytes(StandardCharsets.UTF_8))
                        .chapAlgorithms(List.of(ChapAlgorithm.MD5)).build();
                work(tgt.url(), proof, random.nextLong());
            }
        });
    }

    /** Goal: istgt stores our data, with and without digests. */
    @Test
    void istgtReturnsWrittenData(@TempDir Path folder) {
        Seed.run(random -> {
            Path file = FileContract.zeroes(folder.resolve("istgt.img"));
            try (Istgt istgt = new Istgt(folder, file)) {
                for (Digest digest : Digest.values()) {
                    IscsiOptions options = IscsiOptions.builder().headerDigest(digest)
                            .dataDigest(digest).build();
                    work(istgt.url(), options, random.nextLong());
                }
            }
        });
    }

    private static void work(String url, IscsiOptions options, long seed) throws Exception {
        try (IscsiDevice disk = IscsiDevice.open(url, options)) {
            AtomicInteger steps = new AtomicInteger(STEPS);
            Workload.run(disk, 3, 512, seed, () -> steps.decrementAndGet() > 0);
        }
    }
}

package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.testkit.AsyncDeviceContract;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.initiator.IscsiUrl;
import org.lunarsan.iscsi.text.Digest;

/** The device contract over our own server, with digests, over two connections. */
@Tag("interop")
final class LunarContractTest extends AsyncDeviceContract {
    private final List<Lunar> servers = new ArrayList<>();

    @Override
    protected AsyncDevice make(int blockSize, long blockCount) throws IOException {
        Lunar server = new Lunar("mem:" + blockSize * blockCount,
                "--block-size", Integer.toString(blockSize));
        servers.add(server);
        IscsiOptions options = IscsiOptions.builder().connections(2).headerDigest(Digest.CRC32C)
                .dataDigest(Digest.CRC32C).build();
        return IscsiDevice.of(IscsiUrl.parse(server.url()), options);
    }

    @AfterEach
    void closeServers() {
        servers.forEach(Lunar::close);
    }
}

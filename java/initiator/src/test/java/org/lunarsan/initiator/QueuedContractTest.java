package org.lunarsan.initiator;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.testkit.AsyncDeviceContract;

/** The device contract, over a queue that lends its callers' buffers to an {@link IscsiDevice}. */
final class QueuedContractTest extends AsyncDeviceContract {
    private final List<MiniTarget> targets = new ArrayList<>();

    @Override
    protected AsyncDevice make(int blockSize, long blockCount) throws IOException {
        MiniTarget target = new MiniTarget(blockCount, blockSize);
        targets.add(target);
        return new CoalescingDevice(
                IscsiDevice.of(IscsiUrl.parse(target.url()), IscsiOptions.defaults()));
    }

    @AfterEach
    void closeTargets() throws IOException {
        for (MiniTarget target : targets) {
            target.close();
        }
    }
}

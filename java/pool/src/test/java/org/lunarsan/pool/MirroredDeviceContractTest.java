package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** A mirror of three keeps the contract. */
class MirroredDeviceContractTest extends DeviceContract {
    private List<Device> disks;

    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        disks = List.of(
                Members.memory("a", blockSize, blockCount),
                Members.memory("b", blockSize, blockCount),
                Members.memory("c", blockSize, blockCount));
        Members.mirror(disks);
        return MirroredDevice.of(disks);
    }

    @Override
    protected Device reopen(Device used) throws Exception {
        used.close();
        Device again = MirroredDevice.of(disks);
        // Its name tells the order in which they were given.
        again.open();
        return again;
    }

    @Override
    protected void assertNothingLeft() throws Exception {
        // Closed in peace: no member is stale, nothing is to be copied.
        try (MirroredDevice again = MirroredDevice.of(disks)) {
            again.open();
            assertEquals(PoolStatus.Health.HEALTHY, again.status().health());
            assertEquals(0, again.status().dirtyRegions());
        }
    }
}

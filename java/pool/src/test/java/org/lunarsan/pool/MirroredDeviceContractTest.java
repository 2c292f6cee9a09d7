package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** The device contract, over a mirror of three disks. */
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
        // The name depends on the order in which the members were given.
        again.open();
        return again;
    }

    @Override
    protected void assertNothingLeft() throws Exception {
        // After a clean close no member is stale, and nothing is to be copied.
        try (MirroredDevice again = MirroredDevice.of(disks)) {
            again.open();
            assertEquals(PoolStatus.Health.HEALTHY, again.status().health());
            assertEquals(0, again.status().dirtyRegions());
        }
    }
}

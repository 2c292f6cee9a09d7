package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** The device contract, over four disks in stripes of three blocks. */
class StripedDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        // Not a multiple: the pool is slightly larger.
        long each = (blockCount / 12 + 1) * 3;
        List<Device> disks = List.of(
                Members.memory("a", blockSize, each), Members.memory("b", blockSize, each),
                Members.memory("c", blockSize, each), Members.memory("d", blockSize, each));
        StripedDevice.create(disks, 3);
        return StripedDevice.of(disks);
    }
}

package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** The device contract, over a mirror of asynchronous disks. */
class MirroredAsyncContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        List<Device> disks = List.of(
                AsyncDevice.of(Members.memory("a", blockSize, blockCount)),
                AsyncDevice.of(Members.memory("b", blockSize, blockCount)));
        Members.mirror(disks);
        return MirroredDevice.of(disks);
    }
}

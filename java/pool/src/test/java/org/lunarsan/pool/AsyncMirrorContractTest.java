package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.AsyncDeviceContract;

/** Both device contracts, over asynchronous calls to a mirror. */
class AsyncMirrorContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) throws Exception {
        List<Device> disks = List.of(
                AsyncDevice.of(Members.memory("a", blockSize, blockCount)),
                Members.memory("b", blockSize, blockCount));
        Members.mirror(disks);
        return AsyncDevice.of(MirroredDevice.of(disks));
    }
}

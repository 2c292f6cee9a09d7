package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.MemoryDevice;

/** Both device contracts, over a queue that lends its callers' buffers to an inner device. */
class QueuedAsyncContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return new CoalescingDevice(AsyncDevice.of(new MemoryDevice(blockSize, blockCount)));
    }
}

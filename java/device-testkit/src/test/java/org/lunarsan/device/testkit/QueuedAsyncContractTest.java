package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.MemoryDevice;

/** A queue that lends the buffers of its callers to a device inside keeps both contracts. */
class QueuedAsyncContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return new CoalescingDevice(AsyncDevice.of(new MemoryDevice(blockSize, blockCount)));
    }
}

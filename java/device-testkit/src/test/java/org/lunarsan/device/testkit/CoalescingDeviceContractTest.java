package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.MemoryDevice;

/** Both device contracts, over a queue. */
class CoalescingDeviceContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return new CoalescingDevice(new MemoryDevice(blockSize, blockCount));
    }
}

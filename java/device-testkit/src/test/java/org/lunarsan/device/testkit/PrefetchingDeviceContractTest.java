package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.QueueOptions;

/** Both device contracts, over a prefetching queue with one transfer at a time and low limits. */
class PrefetchingDeviceContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        QueueOptions options = new QueueOptions(1, 5, 16 * blockSize, 20 * blockSize);
        return new CoalescingDevice(new MemoryDevice(blockSize, blockCount), options);
    }
}

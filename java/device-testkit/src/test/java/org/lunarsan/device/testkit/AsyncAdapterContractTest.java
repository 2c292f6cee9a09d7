package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.MemoryDevice;

/** Both device contracts, over a blocking device behind virtual threads. */
class AsyncAdapterContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return AsyncDevice.of(new MemoryDevice(blockSize, blockCount));
    }
}

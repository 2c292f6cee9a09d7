package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.MemoryDevice;

/** A blocking device behind virtual threads keeps both contracts. */
class AsyncAdapterContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return AsyncDevice.of(new MemoryDevice(blockSize, blockCount));
    }
}

package org.lunarsan.device.testkit;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.MemoryDevice;

/** A queue keeps both contracts. */
class CoalescingDeviceContractTest extends AsyncDeviceContract {
    @Override
    protected AsyncDevice make(int blockSize, long blockCount) {
        return new CoalescingDevice(new MemoryDevice(blockSize, blockCount));
    }
}

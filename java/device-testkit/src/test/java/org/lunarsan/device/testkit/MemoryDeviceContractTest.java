package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** The device contract, over a device in memory. */
class MemoryDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new MemoryDevice(blockSize, blockCount);
    }
}

package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** A device in memory keeps the contract. */
class MemoryDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new MemoryDevice(blockSize, blockCount);
    }
}

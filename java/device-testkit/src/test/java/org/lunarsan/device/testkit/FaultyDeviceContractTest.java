package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;

/** Without faults, the device for faults keeps the contract. */
class FaultyDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new FaultyDevice(new MemoryDevice(blockSize, blockCount), Seed.get());
    }
}

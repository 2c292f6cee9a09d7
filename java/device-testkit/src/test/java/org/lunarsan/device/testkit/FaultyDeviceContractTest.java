package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;

/** The device contract, over a {@link FaultyDevice} without injected faults. */
class FaultyDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new FaultyDevice(new MemoryDevice(blockSize, blockCount), Seed.get());
    }
}

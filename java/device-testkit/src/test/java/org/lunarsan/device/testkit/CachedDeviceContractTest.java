package org.lunarsan.device.testkit;

import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** The device contract, over a cache that is smaller than the device. */
class CachedDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new CachedDevice(new MemoryDevice(blockSize, blockCount), 300L * blockSize);
    }
}

package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** As long as there is power, the device that loses it keeps the contract. */
class PowerCutDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new PowerCutDevice(new MemoryDevice(blockSize, blockCount));
    }
}

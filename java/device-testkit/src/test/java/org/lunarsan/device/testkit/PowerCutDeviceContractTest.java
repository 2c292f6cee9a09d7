package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** The device contract, over a device for power cuts without a cut. */
class PowerCutDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new PowerCutDevice(new MemoryDevice(blockSize, blockCount));
    }
}

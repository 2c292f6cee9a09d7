package org.lunarsan.device.testkit;

import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** The device contract, over a {@link PowerCutDevice} whose power is not cut. */
class PowerCutDeviceContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) {
        return new PowerCutDevice(new MemoryDevice(blockSize, blockCount));
    }
}

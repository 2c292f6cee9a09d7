package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** The device contract, over asynchronous disks in stripes too wide to be gathered. */
class StripedAsyncContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        long stripe = StripeTransfer.DIRECT_BYTES_MIN / blockSize;
        long each = (blockCount / 2 / stripe + 1) * stripe;
        List<Device> disks = List.of(
                AsyncDevice.of(Members.memory("a", blockSize, each)),
                AsyncDevice.of(Members.memory("b", blockSize, each)));
        StripedDevice.create(disks, stripe);
        return StripedDevice.of(disks);
    }
}

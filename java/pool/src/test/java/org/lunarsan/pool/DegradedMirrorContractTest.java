package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** The device contract, over a mirror with one member left. */
class DegradedMirrorContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        Device left = Members.memory("left", blockSize, blockCount);
        Members.mirror(List.of(Members.memory("lost", blockSize, blockCount), left));
        return MirroredDevice.ofDegraded(List.of(left));
    }
}

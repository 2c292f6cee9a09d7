package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.testkit.DeviceContract;

/** A mirror of which one member is left keeps the contract. */
class DegradedMirrorContractTest extends DeviceContract {
    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        Device left = Members.memory("left", blockSize, blockCount);
        Members.mirror(List.of(Members.memory("lost", blockSize, blockCount), left));
        return MirroredDevice.ofThoseThere(List.of(left));
    }
}

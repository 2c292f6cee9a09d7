package org.lunarsan.pool;

import java.util.Objects;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;

/** The labels of pools on devices. Stateless and thread-safe. */
public final class PoolLabels {
    private PoolLabels() {}

    /**
     * Clears the labels of a device, durably, so that it is no member of a pool any more. Its data
     * stays, but no pool finds it again.
     *
     * @param device closed before and after
     * @throws DeviceException when the device is too small for labels or fails
     */
    public static void clear(Device device) throws DeviceException {
        Objects.requireNonNull(device, "device");
        try (device) {
            device.open();
            if (PoolLayout.of(device).dataBlocksMax() < 1) {
                throw PoolFormatter.refuse(device.name(), "it is too small for a member of a pool");
            }
            MemberArea.clearLabel(device);
        }
    }
}

package org.lunarsan.device;

/**
 * The device takes no writes. Nothing was done.
 */
public class ReadOnlyDeviceException extends DeviceException {
    private static final long serialVersionUID = 1L;

    /**
     * A failure that concerns some blocks.
     *
     * @param device the name of the device
     * @param operation what it was asked to do
     * @param address the first block, or {@link #NO_ADDRESS}
     * @param blocks how many
     * @param what what failed and, where it helps, what to do
     * @param cause what is behind it, or null
     */
    public ReadOnlyDeviceException(
            String device,
            Operation operation,
            long address,
            long blocks,
            String what,
            Throwable cause) {
        super(device, operation, address, blocks, what, cause);
    }

    /**
     * A failure that concerns the device as a whole.
     *
     * @param device the name of the device
     * @param operation what it was asked to do
     * @param what what failed and, where it helps, what to do
     * @param cause what is behind it, or null
     */
    public ReadOnlyDeviceException(
            String device, Operation operation, String what, Throwable cause) {
        super(device, operation, what, cause);
    }
}

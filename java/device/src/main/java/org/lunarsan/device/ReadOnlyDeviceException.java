package org.lunarsan.device;

/** Thrown when the device is read-only. Nothing was done. */
public class ReadOnlyDeviceException extends DeviceException {
    private static final long serialVersionUID = 1L;

    /**
     * Creates a failure that concerns some blocks.
     *
     * @param device the name of the device
     * @param operation the operation
     * @param address the first block, or {@link #NO_ADDRESS}
     * @param blocks number of blocks
     * @param what the failure and, if helpful, advice
     * @param cause the cause, or null
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
     * Creates a failure that concerns the device as a whole.
     *
     * @param device the name of the device
     * @param operation the operation
     * @param what the failure and, if helpful, advice
     * @param cause the cause, or null
     */
    public ReadOnlyDeviceException(
            String device, Operation operation, String what, Throwable cause) {
        super(device, operation, what, cause);
    }
}

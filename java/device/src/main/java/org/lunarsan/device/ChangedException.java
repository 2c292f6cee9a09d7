package org.lunarsan.device;

/**
 * Another device is found under the name of the one that was opened, or it has shrunk. Nothing was
 * read or written. To try again is of no use: open the device again if this is right.
 */
public class ChangedException extends DeviceException {
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
    public ChangedException(
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
    public ChangedException(
            String device, Operation operation, String what, Throwable cause) {
        super(device, operation, what, cause);
    }
}

package org.lunarsan.device;

import java.io.IOException;

/**
 * A device refused or failed: which one, at what, at which blocks, and why.
 *
 * <p>Its subclasses are the kinds that a caller may want to tell apart. They are open: a device
 * that knows more (the sense data of a SCSI device) extends the kind that fits. An exception is
 * immutable but for what {@link Throwable} allows, and may be passed between threads.
 */
public class DeviceException extends IOException {
    private static final long serialVersionUID = 1L;

    /** {@link #address()} of a failure that concerns no block. */
    public static final long NO_ADDRESS = -1;

    /** The name of the device. */
    private final String device;
    /** What it was asked to do. */
    private final Operation operation;
    /** The first block. */
    private final long address;
    /** How many blocks. */
    private final long blocks;

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
    public DeviceException(
            String device,
            Operation operation,
            long address,
            long blocks,
            String what,
            Throwable cause) {
        super(what, cause);
        this.device = device;
        this.operation = operation;
        this.address = address;
        this.blocks = blocks;
    }

    /**
     * A failure that concerns the device as a whole.
     *
     * @param device the name of the device
     * @param operation what it was asked to do
     * @param what what failed and, where it helps, what to do
     * @param cause what is behind it, or null
     */
    public DeviceException(String device, Operation operation, String what, Throwable cause) {
        this(device, operation, NO_ADDRESS, 0, what, cause);
    }

    /**
     * The device.
     *
     * @return its name
     */
    public String device() {
        return device;
    }

    /**
     * What the device was asked to do.
     *
     * @return the operation
     */
    public Operation operation() {
        return operation;
    }

    /**
     * The first block of what it was asked for, as the caller gave it.
     *
     * @return a block, or {@link #NO_ADDRESS} when no block is concerned
     */
    public long address() {
        return address;
    }

    /**
     * How many blocks it was asked for.
     *
     * @return the count; 0 when no block is concerned
     */
    public long blocks() {
        return blocks;
    }

    /** Device, operation, blocks, and what failed: {@code disk.img: read of blocks 8+2: …}. */
    @Override
    public String getMessage() {
        String where = operation == Operation.OPEN || operation == Operation.FLUSH
                || operation == Operation.CLOSE ? "" : " of blocks " + address + "+" + blocks;
        return device + ": " + operation + where + ": " + super.getMessage();
    }
}

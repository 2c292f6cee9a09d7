package org.lunarsan.device;

import java.io.IOException;

/**
 * Thrown when a device refused or failed. Names the device, the operation, the blocks and the
 * reason.
 *
 * <p>Its subclasses are kinds that a caller may distinguish. They can be extended: a device with
 * more information (the sense data of a SCSI device) extends the matching kind. An exception is
 * immutable, except as {@link Throwable} allows, and may be passed between threads.
 */
public class DeviceException extends IOException {
    private static final long serialVersionUID = 1L;

    /** Returned by {@link #address()} for a failure that concerns no block. */
    public static final long NO_ADDRESS = -1;

    /** The name of the device. */
    private final String device;
    /** The operation. */
    private final Operation operation;
    /** The first block. */
    private final long address;
    /** Number of blocks. */
    private final long blocks;

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
     * Creates a failure that concerns the device as a whole.
     *
     * @param device the name of the device
     * @param operation the operation
     * @param what the failure and, if helpful, advice
     * @param cause the cause, or null
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
     * The operation that was refused or failed.
     *
     * @return the operation
     */
    public Operation operation() {
        return operation;
    }

    /**
     * The first block of the request, as passed by the caller.
     *
     * @return a block, or {@link #NO_ADDRESS} when no block is concerned
     */
    public long address() {
        return address;
    }

    /**
     * Number of blocks of the request.
     *
     * @return the count; 0 when no block is concerned
     */
    public long blocks() {
        return blocks;
    }

    /** Formats device, operation, blocks, and failure: {@code disk.img: read of blocks 8+2: …}. */
    @Override
    public String getMessage() {
        String where = operation == Operation.OPEN || operation == Operation.FLUSH
                || operation == Operation.CLOSE ? "" : " of blocks " + address + "+" + blocks;
        return device + ": " + operation + where + ": " + super.getMessage();
    }
}

package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Objects;

/**
 * The shape of a device, and the checks that every device makes before any I/O. A value; for any
 * thread.
 *
 * @param blockSize bytes of a block: 512, 1024, 2048 or 4096
 * @param blockCount number of blocks, at least 1
 */
public record Geometry(int blockSize, long blockCount) {
    /** The shortest block, in bytes. */
    public static final int BLOCK_BYTES_MIN = 512;

    /** The longest block, in bytes. */
    public static final int BLOCK_BYTES_MAX = 4096;

    /**
     * Checks the shape.
     *
     * @throws IllegalArgumentException when it is impossible; for a shape from outside of the
     *         program use {@link #of(String, int, long)}
     */
    public Geometry {
        String wrong = fault(blockSize, blockCount);
        if (wrong != null) {
            throw new IllegalArgumentException(wrong);
        }
    }

    /**
     * Creates a shape from values of a file or a peer.
     *
     * @param device the name of the device
     * @param blockSize bytes of a block
     * @param blockCount number of blocks
     * @return the shape
     * @throws DeviceOpenException when the shape is impossible
     */
    public static Geometry of(String device, int blockSize, long blockCount)
            throws DeviceOpenException {
        String wrong = fault(blockSize, blockCount);
        if (wrong != null) {
            throw new DeviceOpenException(device, Operation.OPEN, wrong, null);
        }
        return new Geometry(blockSize, blockCount);
    }

    private static String fault(int blockSize, long blockCount) {
        if (blockSize < BLOCK_BYTES_MIN || blockSize > BLOCK_BYTES_MAX
                || Integer.bitCount(blockSize) != 1) {
            return "a block cannot have " + blockSize
                    + " bytes; 512, 1024, 2048 and 4096 are possible";
        }
        if (blockCount < 1) {
            return "a device has at least one block, not " + blockCount;
        }
        if (blockCount > Long.MAX_VALUE / blockSize) {
            return blockCount + " blocks of " + blockSize + " bytes are more than 2^63-1 bytes";
        }
        return null;
    }

    /**
     * The size of the device.
     *
     * @return bytes
     */
    public long bytes() {
        return blockCount * blockSize;
    }

    /**
     * Offset of a block.
     *
     * @param address a block, from 0 to {@link #blockCount()}
     * @return bytes from the beginning of the device
     */
    public long offset(long address) {
        return address * blockSize;
    }

    /**
     * Checks a range of blocks.
     *
     * @param device the name of the device
     * @param operation the operation
     * @param address the first block
     * @param blocks number of blocks
     * @throws OutOfRangeException when one of them is outside of the device
     */
    public void checkRange(String device, Operation operation, long address, long blocks)
            throws OutOfRangeException {
        if (address < 0 || blocks < 0 || blocks > blockCount || address > blockCount - blocks) {
            String what = "the device has the blocks 0 to " + (blockCount - 1);
            throw new OutOfRangeException(device, operation, address, blocks, what, null);
        }
    }

    /**
     * Checks a buffer to read into or to write from.
     *
     * @param device the name of the device
     * @param operation {@link Operation#READ} or {@link Operation#WRITE}
     * @param address the first block
     * @param buffer its remaining bytes are checked
     * @return number of blocks
     * @throws UnalignedException when it is no whole number of blocks
     * @throws OutOfRangeException when one of the blocks is outside of the device
     * @throws ReadOnlyBufferException when a read-only buffer is to be read into
     */
    public int checkBuffer(String device, Operation operation, long address, ByteBuffer buffer)
            throws UnalignedException, OutOfRangeException {
        Objects.requireNonNull(buffer, "buffer");
        int bytes = buffer.remaining();
        int blocks = bytes / blockSize;
        if (bytes % blockSize != 0) {
            String what = "a buffer of " + bytes + " bytes is not a whole number of blocks of "
                    + blockSize + " bytes";
            throw new UnalignedException(device, operation, address, blocks, what, null);
        }
        if (operation == Operation.READ && buffer.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        checkRange(device, operation, address, blocks);
        return blocks;
    }
}

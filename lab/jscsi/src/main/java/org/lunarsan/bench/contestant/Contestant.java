package org.lunarsan.bench.contestant;

/**
 * One who reads and writes a disk, as the Device of the jSCSI paper does: address in blocks, a
 * whole number of blocks, and the call returns when all is done.
 *
 * <p>Threads: called by one.
 */
public interface Contestant extends AutoCloseable {
    /**
     * Bytes of a block.
     *
     * @return 512 to 4096
     */
    int blockSize();

    /**
     * How many blocks there are.
     *
     * @return at least 1
     */
    long blockCount();

    /**
     * Reads all of the buffer.
     *
     * @param address the first block
     * @param buffer a whole number of blocks
     * @throws Exception when it fails
     */
    void read(long address, byte[] buffer) throws Exception;

    /**
     * Writes all of the buffer.
     *
     * @param address the first block
     * @param buffer a whole number of blocks
     * @throws Exception when it fails
     */
    void write(long address, byte[] buffer) throws Exception;

    /** Logs out. */
    @Override
    void close() throws Exception;
}

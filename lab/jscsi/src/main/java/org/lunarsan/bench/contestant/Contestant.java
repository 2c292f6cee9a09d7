package org.lunarsan.bench.contestant;

/**
 * A disk as read and written by one of the measured programs, like the Device of the jSCSI paper:
 * address in blocks, a whole number of blocks, and the call returns when all is done.
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
     * Number of blocks.
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

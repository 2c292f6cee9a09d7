package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A disk: blocks of one size, numbered from 0. The interface of the jSCSI paper (2007), Listing 1,
 * with buffers of NIO, {@link #flush()} and {@link #unmap(long, long)}.
 *
 * <p><b>Life.</b> A device is created, opened, used and closed; it may be opened again. A wrapper
 * opens and closes its inner device. Only one owner opens a device: {@link #open()} of an open one
 * is refused. {@link #close()} may be called at any time and more than once.
 *
 * <p><b>Threads.</b> Any number of threads, platform or virtual, may call at the same time. A call
 * returns when its work is done. Overlapping writes may interleave by block, never within one. A
 * read concurrent to an overlapping write returns any mixture of old and new bytes. Data of a write
 * that returned is found by every read that begins later. A call that runs while the device is
 * closed does its work or throws {@link DeviceClosedException}. An interrupt does no harm to the
 * device or to other callers, and is kept for its thread: calls do their work all the same, except
 * {@link #open()}, which may end with {@link DeviceOpenException} instead.
 *
 * <p><b>Refusals.</b> Misuse is refused before any I/O: {@link UnalignedException} when a buffer is
 * no whole number of blocks, {@link OutOfRangeException} when a block lies before the first or past
 * the last, {@link DeviceClosedException}, {@link ReadOnlyDeviceException}. A buffer of no bytes at
 * an address from 0 to {@link #blockCount()} is allowed and does nothing. {@code null} and a
 * read-only buffer to read into are programming errors and cause unchecked exceptions: a
 * {@link NullPointerException} names the argument. A call with memory that cannot be used (of an
 * arena that is closed, or that is confined to a thread, since a device may use threads of its own)
 * fails with an unchecked exception or a {@link DeviceException}; a write may have written some of
 * its blocks. The device continues to work.
 *
 * <p><b>Failures.</b> A failed read leaves its buffer's bytes undefined. A failed write may have
 * written any of its blocks, each whole. After a failed {@link #flush()} the writes since the last
 * successful one cannot be trusted; devices that detect this throw {@link PoisonedException} from
 * then on.
 */
public interface Device extends AutoCloseable {
    /**
     * Opens the device.
     *
     * @throws DeviceOpenException when it is missing, in use, open already or of an impossible
     *         shape
     * @throws DeviceException when it fails otherwise
     */
    void open() throws DeviceException;

    /**
     * Closes the device; no effect on a closed one. Does not flush: flush before if writes have to
     * be durable.
     *
     * @throws DeviceException when the device reports a failure at its end; it is closed all the
     *         same
     */
    @Override
    void close() throws DeviceException;

    /**
     * Name of the device for messages: a path, a URL.
     *
     * @return the name, never empty, the same for the life of the device
     */
    String name();

    /**
     * Length of a block.
     *
     * @return bytes: a power of two from 512 to 4096
     * @throws IllegalStateException before the first {@link #open()}
     */
    int blockSize();

    /**
     * Number of blocks.
     *
     * @return the count, at least 1; times {@link #blockSize()} it is at most
     *         {@link Long#MAX_VALUE}
     * @throws IllegalStateException before the first {@link #open()}
     */
    long blockCount();

    /**
     * Reads blocks into all of an array.
     *
     * @param address the first block
     * @param buffer a whole number of blocks
     * @throws DeviceException when it is refused or fails
     */
    default void read(long address, byte[] buffer) throws DeviceException {
        read(address, ByteBuffer.wrap(Objects.requireNonNull(buffer, "buffer")));
    }

    /**
     * Writes all of an array.
     *
     * @param address the first block
     * @param buffer a whole number of blocks; not to be changed until this returns
     * @throws DeviceException when it is refused or fails
     */
    default void write(long address, byte[] buffer) throws DeviceException {
        write(address, ByteBuffer.wrap(Objects.requireNonNull(buffer, "buffer")));
    }

    /**
     * Reads blocks into the remaining bytes of a buffer.
     *
     * @param address the first block
     * @param buffer its {@code remaining()} is a whole number of blocks; its position is its limit
     *        after success and unchanged after a failure
     * @throws DeviceException when it is refused or fails
     * @throws java.nio.ReadOnlyBufferException when the buffer is read-only
     */
    void read(long address, ByteBuffer buffer) throws DeviceException;

    /**
     * Writes the remaining bytes of a buffer.
     *
     * @param address the first block
     * @param buffer its {@code remaining()} is a whole number of blocks; its position is its limit
     *        after success and unchanged after a failure; not to be changed until this returns
     * @throws DeviceException when it is refused or fails
     */
    void write(long address, ByteBuffer buffer) throws DeviceException;

    /**
     * Makes all writes and unmaps that returned before this call durable on stable storage.
     *
     * @throws DeviceException when they may not be durable
     */
    void flush() throws DeviceException;

    /**
     * Tells the device that the content of some blocks is no longer needed.
     *
     * <p>If {@link #unmapReadsZeroes()}, the blocks read as zeroes from then on. Otherwise it is a
     * hint: each block reads as zeroes or as before, until it is written again.
     *
     * @param address the first block
     * @param blocks number of blocks; 0 is allowed and does nothing
     * @throws DeviceException when it is refused or fails
     */
    void unmap(long address, long blocks) throws DeviceException;

    /**
     * True if blocks read as zeroes after {@link #unmap(long, long)}.
     *
     * @return true when they do, false when that is not guaranteed
     */
    default boolean unmapReadsZeroes() {
        return true;
    }

    /**
     * Number of times that unflushed writes that had returned may have been lost, for example
     * because a volatile cache lost power while the device stayed open. Code that keeps content of
     * the device, or has another copy of it, must not trust the device when the number has changed.
     * A loss counts no later than a read returns the blocks without the writes; the next
     * {@link #flush()} fails.
     *
     * @return the count since the device was opened, as far as known; 0 if losses cannot be
     *         detected
     */
    default long losses() {
        return 0;
    }

    /**
     * Number of times that earlier reads may have returned blocks without writes that had returned,
     * although the device still has these writes. A mirror counts each member that it leaves out,
     * since the member may have lost writes long before the loss was reported. A cache above reads
     * its blocks again when the number has changed. No write is lost by this alone, and no flush
     * fails for it.
     *
     * @return the count since the device was opened; 0 if this cannot happen
     */
    default long staleReads() {
        return 0;
    }

    /**
     * True if writes are refused.
     *
     * @return true when write and unmap throw {@link ReadOnlyDeviceException}
     */
    default boolean isReadOnly() {
        return false;
    }
}

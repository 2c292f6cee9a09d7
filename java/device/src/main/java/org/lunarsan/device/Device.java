package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A disk: blocks of one size, numbered from 0. The interface of the jSCSI paper (2007), Listing 1,
 * with buffers of NIO, {@link #flush()} and {@link #unmap(long, long)}.
 *
 * <p><b>Life.</b> A device is made, opened, used and closed; it may be opened again. What wraps
 * another device opens and closes it. Only one owner opens a device: {@link #open()} of one that
 * is open is refused. {@link #close()} may be called at any time and more than once.
 *
 * <p><b>Threads.</b> Any number of threads, platform or virtual, may call at the same time. A call
 * returns when its work is done. Overlapping writes may interleave by block, never within one. A
 * read beside an overlapping write finds old and new bytes in any mixture. What was written by a
 * call that returned is found by every read that begins later. A call that runs while the device
 * is closed does its work or throws {@link DeviceClosedException}. Interrupting a caller does no
 * harm to the device or to other callers, and is kept for it: calls do their work all the same, but
 * for {@link #open()}, which may end with {@link DeviceOpenException} instead.
 *
 * <p><b>Refusals.</b> Misuse is refused before any I/O: {@link UnalignedException} when a buffer is
 * no whole number of blocks, {@link OutOfRangeException} when a block lies before the first or past
 * the last, {@link DeviceClosedException}, {@link ReadOnlyDeviceException}. A buffer of no bytes at
 * an address from 0 to {@link #blockCount()} is allowed and does nothing. {@code null} and a
 * read-only buffer to read into are errors of the program and unchecked exceptions: a
 * {@link NullPointerException} names the argument. So it is with memory that cannot be used: of an
 * arena that is closed, or that is confined to a thread, since a device may use threads of its own.
 * Such a call fails with an unchecked exception or a {@link DeviceException}; a write may have
 * written some of its blocks. The device works on.
 *
 * <p><b>Failures.</b> A read that failed leaves its buffer's bytes undefined. A write that failed
 * may have written any of its blocks, each whole. After a failed {@link #flush()} nothing that was
 * written since the last good one can be trusted; devices that can tell throw
 * {@link PoisonedException} from then on.
 */
public interface Device extends AutoCloseable {
    /**
     * Opens it.
     *
     * @throws DeviceOpenException when it is missing, in use, open already or of an impossible
     *     shape
     * @throws DeviceException when it fails otherwise
     */
    void open() throws DeviceException;

    /**
     * Closes it. No effect on one that is closed. It does not flush: what must be durable is
     * flushed before.
     *
     * @throws DeviceException when the device reports a failure at its end; it is closed all the
     *     same
     */
    @Override
    void close() throws DeviceException;

    /**
     * What to call it in messages: a path, a URL.
     *
     * @return the name, never empty, the same for the life of the device
     */
    String name();

    /**
     * The length of a block.
     *
     * @return bytes: a power of two from 512 to 4096
     * @throws IllegalStateException before the first {@link #open()}
     */
    int blockSize();

    /**
     * How many blocks there are.
     *
     * @return the count, at least 1; times {@link #blockSize()} it is at most
     *     {@link Long#MAX_VALUE}
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
     * Reads blocks into what remains of a buffer.
     *
     * @param address the first block
     * @param buffer its {@code remaining()} is a whole number of blocks; its position is its limit
     *     after success and as before after a failure
     * @throws DeviceException when it is refused or fails
     * @throws java.nio.ReadOnlyBufferException when the buffer is read-only
     */
    void read(long address, ByteBuffer buffer) throws DeviceException;

    /**
     * Writes what remains of a buffer.
     *
     * @param address the first block
     * @param buffer its {@code remaining()} is a whole number of blocks; its position is its limit
     *     after success and as before after a failure; not to be changed until this returns
     * @throws DeviceException when it is refused or fails
     */
    void write(long address, ByteBuffer buffer) throws DeviceException;

    /**
     * All writes and unmaps that returned before this call are on stable storage when it returns.
     *
     * @throws DeviceException when they may not be
     */
    void flush() throws DeviceException;

    /**
     * Says that the content of some blocks is no longer wanted.
     *
     * <p>When {@link #unmapReadsZeroes()}, the blocks read as zeroes from then on. Otherwise it is
     * a hint: each block reads as zeroes or as before, until it is written again.
     *
     * @param address the first block
     * @param blocks how many; 0 is allowed and does nothing
     * @throws DeviceException when it is refused or fails
     */
    void unmap(long address, long blocks) throws DeviceException;

    /**
     * Whether blocks read as zeroes after {@link #unmap(long, long)}.
     *
     * @return true when they do, false when that cannot be relied on
     */
    default boolean unmapReadsZeroes() {
        return true;
    }

    /**
     * How often writes that had returned, and were not flushed, may have been lost: the power of a
     * volatile cache may have gone while the device stayed open. Who keeps what the device held, or
     * has another copy of it, trusts this one no more when the number has changed. It counts no
     * later than a read finds the blocks without them; the next {@link #flush()} fails.
     *
     * @return a count since it was opened, as far as is known; 0 where that is never known
     */
    default long losses() {
        return 0;
    }

    /**
     * How often reads that were answered before may have found blocks without writes that had
     * returned, while the device still has these writes: a mirror counts a member that it leaves
     * out, since the member may have lost writes long before anything told of it. A cache above
     * reads its blocks anew when the number has changed. No write is lost by this alone, and no
     * flush fails for it.
     *
     * @return a count since it was opened; 0 where that cannot happen
     */
    default long doubtedReads() {
        return 0;
    }

    /**
     * Whether writes are refused.
     *
     * @return true when write and unmap throw {@link ReadOnlyDeviceException}
     */
    default boolean isReadOnly() {
        return false;
    }
}

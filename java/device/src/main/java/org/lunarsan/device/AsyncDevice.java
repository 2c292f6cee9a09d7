package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * A device with asynchronous calls in addition.
 *
 * <p>Each call returns at once (or when there is room in a bounded queue) with a future that
 * completes as the call of {@link Device} would return: with null, or exceptionally with the
 * {@link DeviceException} that it would throw, including refusals and unusable buffers; only
 * {@code null} is refused by the call itself.
 *
 * <p><b>Buffers.</b> A buffer belongs to the device until the returned future is complete, whether
 * the device, {@link CompletableFuture#orTimeout}, {@code cancel} or other code completes it. From
 * then on the device neither reads nor writes the buffer, even if the transfer continues. The
 * buffer's position is its limit after success, and unchanged otherwise. The state of a future that
 * depends on the returned one says nothing about the buffer.
 *
 * <p><b>Abandoned transfers.</b> A write whose future is completed by other code may be done
 * all the same, with its original data; later writes and unmaps of these blocks wait until it has
 * ended. The data of such a read are discarded. A transfer that has not begun may be skipped.
 * Implementations return a {@link TransferFuture}, which ensures the order of both.
 *
 * <p>Concurrent requests are done in any order, as calls of several threads are, unless the
 * implementation specifies an order. Actions that depend on a future may run in a thread of the
 * device and must not wait there for long.
 */
public interface AsyncDevice extends Device {
    /**
     * Begins {@link Device#read(long, ByteBuffer)}.
     *
     * @param address the first block
     * @param buffer its remaining bytes are read into
     * @return completes when all is read
     */
    CompletableFuture<Void> readAsync(long address, ByteBuffer buffer);

    /**
     * Begins {@link Device#write(long, ByteBuffer)}.
     *
     * @param address the first block
     * @param buffer its remaining bytes are written
     * @return completes when all is written
     */
    CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer);

    /**
     * Begins {@link Device#flush()}, which covers the writes whose futures the device has
     * completed.
     *
     * @return completes when they are durable
     */
    CompletableFuture<Void> flushAsync();

    /**
     * Begins {@link Device#unmap(long, long)}.
     *
     * @param address the first block
     * @param blocks number of blocks
     * @return completes when it is done
     */
    CompletableFuture<Void> unmapAsync(long address, long blocks);

    /**
     * Returns a device whose requests are tasks of an executor. Close the returned device, not the
     * inner one.
     *
     * <p>A blocking call cannot release a buffer early, so the data of each read and write is
     * copied once, through memory outside of the heap. For long buffers outside of the heap that is
     * one copy more than the blocking call makes.
     *
     * @param device the inner device
     * @param executor runs the requests and bounds their number
     * @return the inner device itself when it is one already
     */
    static AsyncDevice of(Device device, Executor executor) {
        Objects.requireNonNull(device, "device");
        Objects.requireNonNull(executor, "executor");
        return device instanceof AsyncDevice already
                ? already
                : new ExecutorAsyncDevice(device, executor);
    }

    /**
     * Works as {@link #of(Device, Executor)}, with each request on a virtual thread of its own. The
     * caller has to bound their number.
     *
     * @param device the inner device
     * @return the inner device itself when it is one already
     */
    static AsyncDevice of(Device device) {
        Objects.requireNonNull(device, "device");
        return of(device, task -> Thread.ofVirtual().name("device " + device.name()).start(task));
    }
}

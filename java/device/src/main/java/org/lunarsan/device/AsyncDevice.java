package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/**
 * A device that can also be asked without waiting.
 *
 * <p>Each call returns at once (or when there is room in a bounded queue) with a future that
 * completes as the call of {@link Device} would return: with null, or exceptionally with the
 * {@link DeviceException} that it would throw, refusals and unusable buffers included;
 * {@code null} alone is refused by the call itself. A buffer belongs to the device until its future
 * is complete; then its position is its limit, or as before after a failure.
 *
 * <p>Requests under way at the same time are done in any order, as calls of several threads are,
 * unless the implementation says more. Cancelling a future stops nothing: the device goes on using
 * the buffer, and nothing tells when it is through. What depends on a future may run in a thread
 * of the device and must not wait there for long.
 */
public interface AsyncDevice extends Device {
    /**
     * Begins {@link Device#read(long, ByteBuffer)}.
     *
     * @param address the first block
     * @param buffer what remains of it is read into
     * @return completes when all is read
     */
    CompletableFuture<Void> readAsync(long address, ByteBuffer buffer);

    /**
     * Begins {@link Device#write(long, ByteBuffer)}.
     *
     * @param address the first block
     * @param buffer what remains of it is written
     * @return completes when all is written
     */
    CompletableFuture<Void> writeAsync(long address, ByteBuffer buffer);

    /**
     * Begins {@link Device#flush()}, which covers the writes whose futures are complete.
     *
     * @return completes when they are durable
     */
    CompletableFuture<Void> flushAsync();

    /**
     * Begins {@link Device#unmap(long, long)}.
     *
     * @param address the first block
     * @param blocks how many
     * @return completes when it is done
     */
    CompletableFuture<Void> unmapAsync(long address, long blocks);

    /**
     * A device that waits for nobody: each request is a task of an executor. Close the returned
     * device, not the one inside.
     *
     * @param device the device inside
     * @param executor runs the requests; it bounds how many are under way
     * @return the device inside itself when it is one already
     */
    static AsyncDevice of(Device device, Executor executor) {
        Objects.requireNonNull(device, "device");
        Objects.requireNonNull(executor, "executor");
        return device instanceof AsyncDevice already
                ? already
                : new ExecutorAsyncDevice(device, executor);
    }

    /**
     * As {@link #of(Device, Executor)}, each request on a virtual thread of its own. How many are
     * under way is up to the caller.
     *
     * @param device the device inside
     * @return the device inside itself when it is one already
     */
    static AsyncDevice of(Device device) {
        Objects.requireNonNull(device, "device");
        return of(device, task -> Thread.ofVirtual().name("device " + device.name()).start(task));
    }
}

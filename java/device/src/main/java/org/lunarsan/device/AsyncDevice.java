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
 * {@code null} alone is refused by the call itself.
 *
 * <p><b>Buffers.</b> A buffer belongs to the device until the returned future is complete, however
 * it is completed: by the device, by {@link CompletableFuture#orTimeout}, {@code cancel} or anybody
 * else. From then on the device neither reads nor writes the buffer, whatever it is doing. Its
 * position is its limit after success, and as before otherwise. A future that depends on the
 * returned one says nothing of the buffer.
 *
 * <p><b>Giving up.</b> A write whose future is completed by somebody else may be done all the same,
 * with the data as it was then; later writes and unmaps of these blocks wait until it has ended. A
 * read ends unheard. What has not begun may be left undone. Implementations return a
 * {@link TransferFuture}, which sees to the order of both.
 *
 * <p>Requests under way at the same time are done in any order, as calls of several threads are,
 * unless the implementation says more. What depends on a future may run in a thread of the device
 * and must not wait there for long.
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
     * @param blocks how many
     * @return completes when it is done
     */
    CompletableFuture<Void> unmapAsync(long address, long blocks);

    /**
     * A device that waits for nobody: each request is a task of an executor. Close the returned
     * device, not the one inside.
     *
     * <p>A call that waits cannot be told to leave a buffer, so the data of each read and write is
     * copied once, through memory outside of the heap. For long buffers outside of the heap that is
     * one copy more than the call that waits makes.
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

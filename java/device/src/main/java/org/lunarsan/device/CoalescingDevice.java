package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A queue in front of another device, which orders, joins and prefetches requests as described for
 * {@link QueueingDevice}.
 *
 * <p>Thread-safe. It owns the inner device: opens it, closes it, and has its name. It turns a
 * blocking device into an {@link AsyncDevice} with a bounded queue; over an {@link AsyncDevice} it
 * copies only the data of joined requests.
 */
public final class CoalescingDevice extends QueueingDevice {
    private final Device inner;

    /**
     * Creates a queue with {@link QueueOptions#DEFAULT}.
     *
     * @param inner the inner device, closed
     */
    public CoalescingDevice(Device inner) {
        this(inner, QueueOptions.DEFAULT);
    }

    /**
     * Creates a queue with options.
     *
     * @param inner the inner device, closed
     * @param options options of the queue
     */
    public CoalescingDevice(Device inner, QueueOptions options) {
        super(Objects.requireNonNull(inner, "inner").name(), options);
        this.inner = inner;
    }

    @Override
    protected Geometry openTransfers() throws DeviceException {
        inner.open();
        return new Geometry(inner.blockSize(), inner.blockCount());
    }

    @Override
    protected void closeTransfers() throws DeviceException {
        inner.close();
    }

    @Override
    protected void readBlocks(long address, ByteBuffer into) throws DeviceException {
        inner.read(address, into);
    }

    @Override
    protected void writeBlocks(long address, ByteBuffer from) throws DeviceException {
        inner.write(address, from);
    }

    @Override
    protected void flushBlocks() throws DeviceException {
        inner.flush();
    }

    @Override
    protected void unmapBlocks(long address, long blocks) throws DeviceException {
        inner.unmap(address, blocks);
    }

    @Override
    AsyncDevice innerAsync() {
        return inner instanceof AsyncDevice async ? async : null;
    }

    @Override
    public long losses() {
        return inner.losses();
    }

    @Override
    public long staleReads() {
        return inner.staleReads();
    }

    @Override
    public boolean unmapReadsZeroes() {
        return inner.unmapReadsZeroes();
    }

    @Override
    public boolean isReadOnly() {
        return inner.isReadOnly();
    }
}

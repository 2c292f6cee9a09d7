package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A queue in front of another device: requests are ordered, joined and read ahead as
 * {@link QueueingDevice} says.
 *
 * <p>For any thread. It owns the device inside: opens it, closes it, and has its name. A blocking
 * device becomes an {@link AsyncDevice} with a bounded queue by it; over an {@link AsyncDevice} no
 * data is copied but that of requests that are joined.
 */
public final class CoalescingDevice extends QueueingDevice {
    private final Device inner;

    /**
     * With {@link QueueOptions#DEFAULT}.
     *
     * @param inner the device inside, closed
     */
    public CoalescingDevice(Device inner) {
        this(inner, QueueOptions.DEFAULT);
    }

    /**
     * With options.
     *
     * @param inner the device inside, closed
     * @param options how to queue
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
    AsyncDevice asyncInside() {
        return inner instanceof AsyncDevice async ? async : null;
    }

    @Override
    public long losses() {
        return inner.losses();
    }

    @Override
    public long doubtedReads() {
        return inner.doubtedReads();
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

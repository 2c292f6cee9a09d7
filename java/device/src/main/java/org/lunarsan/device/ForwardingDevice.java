package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Objects;

/**
 * A device that forwards all calls to an inner one. Decorators extend it and override methods.
 *
 * <p>It owns the inner device: opens it, closes it, and has its name. Its thread rule is that of
 * {@link Device}.
 */
public abstract class ForwardingDevice implements Device {
    /** The inner device. */
    private final Device inner;

    /**
     * Wraps a device, which is closed.
     *
     * @param inner the inner device
     */
    protected ForwardingDevice(Device inner) {
        this.inner = Objects.requireNonNull(inner, "inner");
    }

    /**
     * The inner device.
     *
     * @return never null
     */
    protected final Device inner() {
        return inner;
    }

    @Override
    public void open() throws DeviceException {
        inner.open();
    }

    @Override
    public void close() throws DeviceException {
        inner.close();
    }

    @Override
    public String name() {
        return inner.name();
    }

    @Override
    public int blockSize() {
        return inner.blockSize();
    }

    @Override
    public long blockCount() {
        return inner.blockCount();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        inner.read(address, buffer);
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        inner.write(address, buffer);
    }

    @Override
    public void flush() throws DeviceException {
        inner.flush();
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        inner.unmap(address, blocks);
    }

    @Override
    public boolean unmapReadsZeroes() {
        return inner.unmapReadsZeroes();
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
    public boolean isReadOnly() {
        return inner.isReadOnly();
    }

    @Override
    public String toString() {
        return getClass().getSimpleName() + "(" + inner + ")";
    }
}

package org.lunarsan.device.testkit;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.Operation;

/**
 * A device with a write cache that loses power: of the blocks that were written and not flushed,
 * any may reach the inner device, in any order, with any of their contents or none.
 *
 * <p>Thread-safe; one operation at a time. After {@link #cut(Random)} every operation fails
 * until the device is opened again.
 */
public final class PowerCutDevice extends ForwardingDevice {
    private final ReentrantLock lock = new ReentrantLock();
    /** Unflushed blocks, each with its contents, oldest first. */
    private final TreeMap<Long, List<byte[]>> cache = new TreeMap<>();
    private boolean powered;
    private boolean open;

    /**
     * Wraps a device without loss.
     *
     * @param inner the inner device, closed
     */
    public PowerCutDevice(Device inner) {
        super(inner);
    }

    @Override
    public void open() throws DeviceException {
        lock.lock();
        try {
            super.open();
            open = true;
            powered = true;
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void close() throws DeviceException {
        lock.lock();
        try {
            if (open && powered) {
                destage();
            }
            open = false;
            super.close();
        } finally {
            lock.unlock();
        }
    }

    /**
     * Cuts the power: each block keeps any of its contents since the last flush.
     *
     * @param random decides which
     * @throws DeviceException when the inner device fails
     */
    public void cut(Random random) throws DeviceException {
        lock.lock();
        try {
            for (Map.Entry<Long, List<byte[]>> block : cache.entrySet()) {
                int kept = random.nextInt(block.getValue().size() + 1);
                if (kept > 0) {
                    inner().write(block.getKey(), block.getValue().get(kept - 1));
                }
            }
            cache.clear();
            powered = false;
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        lock.lock();
        try {
            check(Operation.READ, address);
            int begin = buffer.position();
            inner().read(address, buffer);
            int size = blockSize();
            long end = address + (buffer.limit() - begin) / size;
            for (Map.Entry<Long, List<byte[]>> block : cache.subMap(address, end).entrySet()) {
                int at = begin + (int) (block.getKey() - address) * size;
                buffer.put(at, block.getValue().getLast());
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        lock.lock();
        try {
            check(Operation.WRITE, address);
            shape().checkBuffer(name(), Operation.WRITE, address, buffer);
            for (long block = address; buffer.hasRemaining(); block++) {
                byte[] content = new byte[blockSize()];
                buffer.get(content);
                cache.computeIfAbsent(block, absent -> new ArrayList<>()).add(content);
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        lock.lock();
        try {
            check(Operation.UNMAP, address);
            shape().checkRange(name(), Operation.UNMAP, address, blocks);
            for (long block = address; block < address + blocks; block++) {
                write(block, new byte[blockSize()]);
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void flush() throws DeviceException {
        lock.lock();
        try {
            check(Operation.FLUSH, DeviceException.NO_ADDRESS);
            destage();
            inner().flush();
        } finally {
            lock.unlock();
        }
    }

    private void destage() throws DeviceException {
        for (Map.Entry<Long, List<byte[]>> block : cache.entrySet()) {
            inner().write(block.getKey(), block.getValue().getLast());
        }
        cache.clear();
    }

    private Geometry shape() {
        return new Geometry(blockSize(), blockCount());
    }

    private void check(Operation operation, long address) throws DeviceClosedException {
        if (!open || !powered) {
            String what = open ? "the power was cut" : "the device is not open";
            throw new DeviceClosedException(name(), operation, address, 0, what, null);
        }
    }
}

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;

/**
 * A page cache that writes back by flushes, and considers its blocks clean when the subsequent
 * flush has failed; blocks that could not be written at all stay dirty. Thread-safe.
 */
final class TrialPageCache extends ForwardingDevice {
    private final Object flushing = new Object();
    /** Guarded by itself, like the dirty ones. */
    private final Map<Long, byte[]> pages = new HashMap<>();
    private final Set<Long> dirty = new HashSet<>();

    TrialPageCache(Device inner) {
        super(inner);
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        int size = blockSize();
        int blocks = buffer.remaining() / size;
        for (int index = 0; index < blocks; index++) {
            byte[] page;
            synchronized (pages) {
                page = pages.get(address + index);
            }
            if (page == null) {
                page = new byte[size];
                super.read(address + index, ByteBuffer.wrap(page));
                synchronized (pages) {
                    byte[] written = pages.putIfAbsent(address + index, page);
                    page = written == null ? page : written;
                }
            }
            buffer.put(page);
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) {
        int size = blockSize();
        synchronized (pages) {
            for (long block = address; buffer.hasRemaining(); block++) {
                byte[] page = new byte[size];
                buffer.get(page);
                pages.put(block, page);
                dirty.add(block);
            }
        }
    }

    @Override
    public void flush() throws DeviceException {
        synchronized (flushing) {
            Map<Long, byte[]> out = new HashMap<>();
            synchronized (pages) {
                dirty.forEach(block -> out.put(block, pages.get(block)));
                dirty.clear();
            }
            DeviceException failure = null;
            for (Map.Entry<Long, byte[]> page : out.entrySet()) {
                try {
                    super.write(page.getKey(), ByteBuffer.wrap(page.getValue()));
                } catch (DeviceException failed) {
                    failure = failed;
                    synchronized (pages) {
                        dirty.add(page.getKey());
                    }
                }
            }
            super.flush();
            if (failure != null) {
                throw failure;
            }
        }
    }

    /** Drops the clean pages; no call may run meanwhile. */
    void drop() {
        synchronized (pages) {
            pages.keySet().retainAll(dirty);
        }
    }
}

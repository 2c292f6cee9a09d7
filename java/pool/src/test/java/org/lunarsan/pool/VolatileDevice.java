package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;

/**
 * A device with a volatile cache, which can lose power while it stays open, like a target behind a
 * re-established iSCSI session. Its flush can fail like that of a Linux page cache: unwritten
 * blocks are considered clean from then on. Thread-safe.
 */
final class VolatileDevice extends ForwardingDevice {
    /** Content of blocks before the unflushed writes. */
    private final Map<Long, byte[]> before = new HashMap<>();
    /** Content on the medium of blocks that a failed flush left in the cache. */
    private final Map<Long, byte[]> unwritten = new HashMap<>();
    private final boolean countsLosses;
    private long losses;
    private boolean unreported;
    private boolean failsNextFlush;

    VolatileDevice(Device inner) {
        this(inner, true);
    }

    private VolatileDevice(Device inner, boolean countsLosses) {
        super(inner);
        this.countsLosses = countsLosses;
    }

    /**
     * Returns a device that counts no losses: one failed flush reports a loss, as with most
     * devices.
     */
    static VolatileDevice withoutCount(Device inner) {
        return new VolatileDevice(inner, false);
    }

    @Override
    public synchronized void open() throws DeviceException {
        super.open();
        losses = 0;
        unreported = false;
    }

    @Override
    public synchronized void write(long address, ByteBuffer buffer) throws DeviceException {
        for (int index = 0; index < buffer.remaining() / blockSize(); index++) {
            byte[] old = unwritten.remove(address + index);
            if (old == null) {
                old = new byte[blockSize()];
                super.read(address + index, ByteBuffer.wrap(old));
            }
            before.putIfAbsent(address + index, old);
        }
        super.write(address, buffer);
    }

    @Override
    public synchronized void read(long address, ByteBuffer buffer) throws DeviceException {
        super.read(address, buffer);
    }

    @Override
    public synchronized void flush() throws DeviceException {
        if (unreported) {
            unreported = false;
            throw new PoisonedException(name(), Operation.FLUSH, "writes were lost", null);
        }
        if (failsNextFlush) {
            failsNextFlush = false;
            before.forEach(unwritten::putIfAbsent);
            before.clear();
            throw new MediumException(
                    name(), Operation.FLUSH, DeviceException.NO_ADDRESS, 0, "not written", null);
        }
        before.clear();
        super.flush();
    }

    @Override
    public synchronized long losses() {
        return countsLosses ? losses : 0;
    }

    /** Makes the next flush fail without writing; the blocks are then considered clean. */
    synchronized void failNextFlush() {
        failsNextFlush = true;
    }

    /** Undoes the last {@link #failNextFlush}. */
    synchronized void cancelFailNextFlush() {
        failsNextFlush = false;
    }

    /** Drops blocks considered clean from the cache, each with a chance of 1 in {@code oneIn}. */
    synchronized void evict(Random random, int oneIn) throws DeviceException {
        for (Long address : List.copyOf(unwritten.keySet())) {
            if (random.nextInt(oneIn) == 0) {
                super.write(address, ByteBuffer.wrap(unwritten.remove(address)));
            }
        }
    }

    /** Loses all data that was not flushed. */
    void cutPower() throws DeviceException {
        cutPower(new Random(0), 1);
    }

    /**
     * Loses each unflushed block with a chance of 1 in {@code oneIn}. Blocks considered clean are
     * lost in any case, unreported.
     */
    synchronized void cutPower(Random random, int oneIn) throws DeviceException {
        evict(new Random(0), 1);
        if (before.isEmpty()) {
            return;
        }
        for (Map.Entry<Long, byte[]> block : before.entrySet()) {
            if (random.nextInt(oneIn) == 0) {
                super.write(block.getKey(), ByteBuffer.wrap(block.getValue()));
            }
        }
        before.clear();
        losses++;
        unreported = true;
    }
}

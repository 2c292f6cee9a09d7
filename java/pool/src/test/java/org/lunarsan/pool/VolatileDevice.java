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
 * A device with a volatile cache, whose power may go while it stays open, as that of a target does
 * behind an iSCSI session that is made again. A flush of it can fail as that of a Linux page cache
 * does: what it did not write counts as clean from then on. For any thread.
 */
final class VolatileDevice extends ForwardingDevice {
    /** Blocks as they were before what was not flushed. */
    private final Map<Long, byte[]> before = new HashMap<>();
    /** Blocks as they are on the medium, where a failed flush has left others in the cache. */
    private final Map<Long, byte[]> unwritten = new HashMap<>();
    private final boolean countsLosses;
    private long losses;
    private boolean untold;
    private boolean failsNextFlush;

    VolatileDevice(Device inner) {
        this(inner, true);
    }

    private VolatileDevice(Device inner, boolean countsLosses) {
        super(inner);
        this.countsLosses = countsLosses;
    }

    /** Counts no losses: only one failed flush tells of a loss, as with most devices. */
    static VolatileDevice withoutCount(Device inner) {
        return new VolatileDevice(inner, false);
    }

    @Override
    public synchronized void open() throws DeviceException {
        super.open();
        losses = 0;
        untold = false;
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
        if (untold) {
            untold = false;
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

    /** The next flush writes nothing and fails; the blocks count as clean, and as the newest. */
    synchronized void failNextFlush() {
        failsNextFlush = true;
    }

    /** Takes the last of {@link #failNextFlush} back. */
    synchronized void failNoFlush() {
        failsNextFlush = false;
    }

    /** The cache drops blocks that count as clean, by a chance of one in some. */
    synchronized void evict(Random random, int oneIn) throws DeviceException {
        for (Long address : List.copyOf(unwritten.keySet())) {
            if (random.nextInt(oneIn) == 0) {
                super.write(address, ByteBuffer.wrap(unwritten.remove(address)));
            }
        }
    }

    /** What was not flushed is gone. */
    void cutPower() throws DeviceException {
        cutPower(new Random(0), 1);
    }

    /**
     * Of what was not flushed, each block is gone by a chance of one in some. What counted as clean
     * is gone in any case, and nothing tells of that.
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
        untold = true;
    }
}

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.BitSet;
import java.util.concurrent.atomic.AtomicReference;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * Copies blocks to the current members that miss them, before a read returns them. Otherwise, if
 * the only member that has them were lost, later reads would return the version of another member,
 * although nothing was written and no loss was reported. For one read.
 */
final class ReadCopy implements Parallel.Work<MirrorMember> {
    private final Mirror mirror;
    private final long address;
    private final int blocks;
    private final AtomicReference<ByteBuffer> found = new AtomicReference<>();
    private volatile boolean sourceFailed;

    ReadCopy(Mirror mirror, long address, int blocks) {
        this.mirror = mirror;
        this.address = address;
        this.blocks = blocks;
    }

    /**
     * Copies the blocks. Called without any lock.
     *
     * @return the data, which all current members have now; null: no member misses them any more,
     *         or the source could not be read
     */
    ByteBuffer run() throws DeviceException {
        try {
            mirror.copyToMissing(address, blocks, this);
        } catch (DeviceException failure) {
            mirror.membership().refuseClosing(Operation.READ, address);
            return null;
        }
        return sourceFailed ? null : found.get();
    }

    /** Reads the blocks from a member that has them and writes them to one that misses them. */
    @Override
    public void run(MirrorMember target) throws DeviceException {
        BitSet not = new BitSet();
        not.set(target.slot);
        MirrorMember source = mirror.reader().choose(address, blocks, not);
        if (source == null) {
            sourceFailed = true;
            return;
        }
        ByteBuffer data =
                ByteBuffer.allocate(blocks * mirror.membership().label().blockSize());
        try {
            mirror.within(Operation.READ, source, one -> one.read(address, data.duplicate()));
            // Most devices report a loss only by a flush.
            mirror.within(Operation.FLUSH, source, one -> one.device.checkLosses());
        } catch (DeviceException failure) {
            sourceFailed = true;
            return;
        }
        if (source.hasLost()) {
            sourceFailed = true;
            return;
        }
        mirror.within(Operation.WRITE, target, one -> one.write(address, data.duplicate()));
        found.set(data);
    }
}

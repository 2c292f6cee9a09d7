package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.BitSet;
import java.util.HashSet;
import java.util.Set;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;

/**
 * Rewrites unsecured regions of a mirror, one piece at a time, concurrently with reads and writes.
 * From then on their blocks are like any written ones: the next flush covers them, and a loss of
 * them is reported. Confined to the thread that runs it; one runs at a time.
 */
final class RegionRewriter {
    private static final int PIECE_BYTES = 1 << 20;
    private static final BitSet NOBODY = new BitSet();

    private final Mirror mirror;
    private final UnsecuredRegions unsecured;
    private final int blockSize;

    RegionRewriter(Mirror mirror) {
        this.mirror = mirror;
        unsecured = mirror.membership().unsecured();
        blockSize = mirror.membership().label().blockSize();
    }

    /** Secures all regions for which flushes wait. */
    void secureUrgent() throws DeviceException {
        boolean any = false;
        for (int region = unsecured.nextUrgent(0); region >= 0;
                region = unsecured.nextUrgent(0)) {
            secure(region);
            any = true;
        }
        if (any) {
            // Earlier reads may have returned other data.
            mirror.membership().doubtReads();
        }
    }

    /**
     * Secures a region. Each further attempt follows a loss, or a member that was left out and
     * whose regions another one has now.
     *
     * @throws DeviceException when no current member can be written
     */
    void secure(int region) throws DeviceException {
        while (unsecured.has(region)) {
            int additions = unsecured.additions();
            Set<MirrorMember> written = writeAnew(region);
            mirror.membership().secured(region, additions, written);
        }
    }

    private Set<MirrorMember> writeAnew(int region) throws DeviceException {
        Set<MirrorMember> written = new HashSet<>();
        PoolLabel label = mirror.membership().label();
        long piece = PIECE_BYTES / blockSize;
        long first = region * label.unitBlocks();
        long end = Math.min(first + label.unitBlocks(), label.dataBlocks());
        for (long at = first; at < end; at += piece) {
            long address = at;
            int blocks = (int) Math.min(piece, end - at);
            MirrorMember holder = mirror.reader().choose(address, blocks, NOBODY);
            if (holder == null) {
                // No member has the region: there is nothing to write, and reads fail.
                continue;
            }
            written.add(holder);
            mirror.rewrite(holder, address, blocks, one -> writeAnew(one, address, blocks));
        }
        return written;
    }

    /**
     * Rewrites blocks from the member itself. Behind the lock of the blocks. A block that cannot be
     * read stays as it is.
     */
    private void writeAnew(MirrorMember member, long address, int blocks) throws DeviceException {
        ByteBuffer data = ByteBuffer.allocate(blocks * blockSize);
        try {
            member.read(address, data.duplicate());
        } catch (MediumException unreadable) {
            if (blocks > 1) {
                int half = blocks / 2;
                writeAnew(member, address, half);
                writeAnew(member, address + half, blocks - half);
            }
            return;
        }
        member.write(address, data);
    }
}

package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.BitSet;
import java.util.HashSet;
import java.util.Set;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;

/**
 * Rewrites regions of a mirror whose writes may be lost ({@link RegionsToRewrite}), one piece at a
 * time, concurrently with reads and writes. From then on their blocks are like any written ones:
 * the next flush covers them, and a loss of them is reported. Confined to the thread that runs it;
 * one runs at a time.
 */
final class RegionRewriter {
    private static final int PIECE_BYTES = 1 << 20;
    private static final BitSet NO_MEMBERS = new BitSet();

    private final Mirror mirror;
    private final RegionsToRewrite regions;
    private final int blockSize;

    RegionRewriter(Mirror mirror) {
        this.mirror = mirror;
        regions = mirror.membership().regionsToRewrite();
        blockSize = mirror.membership().label().blockSize();
    }

    /** Rewrites all regions for which flushes wait. */
    void rewriteUrgent() throws DeviceException {
        boolean any = false;
        for (int region = regions.nextUrgent(0); region >= 0; region = regions.nextUrgent(0)) {
            rewrite(region);
            any = true;
        }
        if (any) {
            // Earlier reads may have returned other data.
            mirror.membership().countStaleReads();
        }
    }

    /**
     * Rewrites a region. Each further attempt follows a loss, or a member that was left out and
     * whose regions another one has now.
     *
     * @throws DeviceException when no current member can be written
     */
    void rewrite(int region) throws DeviceException {
        while (regions.has(region)) {
            int additions = regions.additions();
            Set<MirrorMember> written = rewritePieces(region);
            mirror.membership().rewritten(region, additions, written);
        }
    }

    private Set<MirrorMember> rewritePieces(int region) throws DeviceException {
        Set<MirrorMember> written = new HashSet<>();
        PoolLabel label = mirror.membership().label();
        long piece = PIECE_BYTES / blockSize;
        long first = region * label.unitBlocks();
        long end = Math.min(first + label.unitBlocks(), label.dataBlocks());
        for (long at = first; at < end; at += piece) {
            long address = at;
            int blocks = (int) Math.min(piece, end - at);
            MirrorMember holder = mirror.reader().choose(address, blocks, NO_MEMBERS);
            if (holder == null) {
                // No member has the region: there is nothing to write, and reads fail.
                continue;
            }
            written.add(holder);
            mirror.rewrite(holder, address, blocks, one -> readAndRewrite(one, address, blocks));
        }
        return written;
    }

    /**
     * Rewrites blocks from the member itself. Behind the lock of the blocks. A block that cannot be
     * read stays as it is.
     */
    private void readAndRewrite(MirrorMember member, long address, int blocks)
            throws DeviceException {
        ByteBuffer data = ByteBuffer.allocate(blocks * blockSize);
        try {
            member.read(address, data.duplicate());
        } catch (MediumException unreadable) {
            if (blocks > 1) {
                int half = blocks / 2;
                readAndRewrite(member, address, half);
                readAndRewrite(member, address + half, blocks - half);
            }
            return;
        }
        member.write(address, data);
    }
}

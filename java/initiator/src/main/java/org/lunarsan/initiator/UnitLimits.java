package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import org.lunarsan.device.Geometry;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Capacity;
import org.lunarsan.iscsi.scsi.Cdb;
import org.lunarsan.iscsi.scsi.VitalPage;
import org.lunarsan.iscsi.scsi.VitalPage.BlockLimits;
import org.lunarsan.iscsi.scsi.VitalPage.Provisioning;

/**
 * Size and limits of a unit, and its method of unmapping blocks.
 *
 * <p>Threads: immutable.
 *
 * @param geometry block size and count
 * @param transferBlocks limit of blocks of one READ or WRITE
 * @param unmapping how blocks are unmapped
 * @param unmapBlocks limit of blocks of one command that unmaps
 * @param granularity blocks of a unit of allocation, at least 1
 * @param isThin whether the unit can unmap blocks (LBPME)
 */
record UnitLimits(Geometry geometry, int transferBlocks, Unmapping unmapping, int unmapBlocks,
        long granularity, boolean isThin) {
    /** The longest transfer in any case, also if the target has no limit. */
    static final int TRANSFER_BYTES_MAX = 8 << 20;
    /** The longest WRITE SAME if the target has no limit. */
    static final int WRITE_SAME_BYTES_MAX = 32 << 20;
    /** The longest UNMAP if the target has no limit. */
    static final int UNMAP_BLOCKS_MAX = 1 << 20;

    private static final int CDB_BYTES = 16;
    private static final int UNMAP_LIST_BYTES = 24;

    /** Method of unmapping blocks. */
    enum Unmapping {
        /** WRITE SAME with zeroes that may deallocate: the blocks read as zeroes afterwards. */
        ZEROES,
        /** UNMAP of whole units of allocation: a hint. */
        HINT,
        /** Blocks cannot be unmapped. */
        NONE
    }

    /** Queries the limits of the unit. */
    static UnitLimits of(Unit unit, Capacity capacity) throws Failure {
        int size = capacity.blockBytes();
        long count = capacity.blockCount();
        if (size > Geometry.BLOCK_BYTES_MAX || count > Long.MAX_VALUE / size) {
            throw Failure.of(Kind.PROTOCOL, "the unit has " + count + " blocks of " + size
                    + " bytes").hint("512, 1024, 2048 and 4096 bytes are supported");
        }
        BlockLimits none = new BlockLimits(0, 0, 0, 0, 0, 0, 0);
        BlockLimits limits = unit.vitalPage(VitalPage.BLOCK_LIMITS).map(VitalPage::blockLimits)
                .orElse(none);
        Provisioning knows = unit.vitalPage(VitalPage.LOGICAL_BLOCK_PROVISIONING)
                .map(VitalPage::provisioning).orElse(new Provisioning(false, false, false));
        Unmapping unmapping = Unmapping.NONE;
        long most = 1;
        if (capacity.isThin() && capacity.unmappedReadsZeroes() && knows.writeSameUnmaps()) {
            unmapping = Unmapping.ZEROES;
            most = limit(limits.writeSameBlocksMax(), WRITE_SAME_BYTES_MAX / size);
        } else if (capacity.isThin() && knows.unmaps()) {
            unmapping = Unmapping.HINT;
            most = limit(limits.unmapBlocksMax(), UNMAP_BLOCKS_MAX);
        }
        return new UnitLimits(new Geometry(size, count),
                (int) limit(limits.transferBlocksMax(), TRANSFER_BYTES_MAX / size), unmapping,
                (int) most, Math.max(limits.unmapGranularityBlocks(), 1), capacity.isThin());
    }

    /** Returns the target's limit if there is one, but at most {@code most}. */
    private static long limit(long named, long most) {
        return named > 0 ? Math.min(named, most) : most;
    }

    /** Returns the largest number of blocks of one piece of a long transfer. */
    int pieceBlocks() {
        return Pieces.blocksMax(transferBlocks, geometry.blockSize());
    }

    /** Encodes SYNCHRONIZE CACHE (16) of all blocks. */
    byte[] synchronizeCache() {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.synchronizeCache16(cdb, 0, 0);
        return cdb;
    }

    /** Sends one command and waits for it. */
    interface CommandSender {
        void send(CommandRequest order) throws Failure;
    }

    /** Unmaps blocks by consecutive commands; does nothing if the unit cannot unmap. */
    void unmap(long lba, long blocks, CommandSender sending) throws Failure {
        switch (unmapping) {
            case ZEROES -> pieces(lba, lba + blocks, true, sending);
            // Partial units of allocation at both ends stay as they are: UNMAP is only a hint.
            case HINT -> pieces(roundUp(lba), (lba + blocks) / granularity * granularity, false,
                    sending);
            case NONE -> {
            }
        }
    }

    private long roundUp(long lba) {
        long over = lba % granularity;
        return over == 0 ? lba : lba + (granularity - over);
    }

    private void pieces(long from, long end, boolean zeroes, CommandSender sending) throws Failure {
        ByteBuffer zero = ByteBuffer.allocate(zeroes ? geometry.blockSize() : 0);
        for (long lba = from; lba < end; lba += unmapBlocks) {
            int blocks = (int) Math.min(unmapBlocks, end - lba);
            sending.send(zeroes ? zeroed(lba, blocks, zero) : hinted(lba, blocks));
        }
    }

    private static CommandRequest zeroed(long lba, int blocks, ByteBuffer zero) {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.writeSame16(cdb, Cdb.MAY_UNMAP, lba, blocks);
        return new CommandRequest(cdb, zero, 0, zero.capacity(), true, true, lba, blocks);
    }

    private static CommandRequest hinted(long lba, int blocks) {
        ByteBuffer list = ByteBuffer.allocate(UNMAP_LIST_BYTES);
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.unmap(cdb, Cdb.unmapList(list, lba, blocks));
        return new CommandRequest(cdb, list, 0, UNMAP_LIST_BYTES, true, true, lba, blocks);
    }
}

package org.lunarsan.pool;

/**
 * Maps blocks of a striped pool to blocks of its members. Immutable and thread-safe.
 *
 * @param members number of members
 * @param stripeBlocks blocks of a stripe
 */
record StripeMap(int members, long stripeBlocks) {
    /** Returns the member that holds a block. */
    int member(long address) {
        return (int) (address / stripeBlocks % members);
    }

    /** Returns the block among the data of that member. */
    long block(long address) {
        return address / stripeBlocks / members * stripeBlocks + address % stripeBlocks;
    }

    /** Returns the block of the pool that is stored at a block of a member. */
    long address(int member, long block) {
        return (block / stripeBlocks * members + member) * stripeBlocks + block % stripeBlocks;
    }

    /** Returns the number of blocks from {@code address} to the end of its stripe. */
    long contiguousBlocks(long address) {
        return stripeBlocks - address % stripeBlocks;
    }

    /**
     * Returns the first block on a member at or after a block of the pool. A run of the pool is one
     * run on each member, from the result for its beginning to that for its end.
     */
    long firstFrom(int member, long address) {
        long row = address / stripeBlocks / members;
        int at = member(address);
        if (member < at) {
            return (row + 1) * stripeBlocks;
        }
        return row * stripeBlocks + (member == at ? address % stripeBlocks : 0);
    }
}

package org.lunarsan.pool;

/**
 * Which block of a striped pool lies where. A value; for any thread.
 *
 * @param members how many
 * @param stripeBlocks blocks of a stripe
 */
record StripeMap(int members, long stripeBlocks) {
    /** The member that a block lies on. */
    int member(long address) {
        return (int) (address / stripeBlocks % members);
    }

    /** Its block among the data of that member. */
    long block(long address) {
        return address / stripeBlocks / members * stripeBlocks + address % stripeBlocks;
    }

    /** The block of the pool that lies at a block of a member. */
    long address(int member, long block) {
        return (block / stripeBlocks * members + member) * stripeBlocks + block % stripeBlocks;
    }

    /** How many blocks from there on lie together, on that member, in that stripe. */
    long together(long address) {
        return stripeBlocks - address % stripeBlocks;
    }

    /**
     * The first block on a member that lies at or after a block of the pool. Of a run of the pool
     * each member has a run, from that of its beginning to that of its end.
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

package org.lunarsan.bench.contestant;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * Addresses and data of operations: the same for every contestant, in Java here and in C in
 * libiscsi-ops.c.
 *
 * <p>Threads: without state.
 */
public final class OperationData {
    private static final VarHandle WORDS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    /**
     * Index of the output of the generator from which the data is derived; addresses use lower
     * indices.
     */
    private static final long DATA_KEY = 0xffff_ffffL;
    private static final long HASH_START = 0xcbf2_9ce4_8422_2325L;
    private static final long HASH_PRIME = 0x100_0000_01b3L;
    private static final int HASH_FOLD = 29;

    private OperationData() {
    }

    /**
     * Returns an output of SplitMix64 (Steele, Lea, Flood 2014).
     *
     * @param seed the sequence
     * @param number index in the sequence, from 0
     * @return 64 bits
     */
    public static long mixed(long seed, long number) {
        long z = seed + (number + 1) * 0x9e37_79b9_7f4a_7c15L;
        z = (z ^ (z >>> 30)) * 0xbf58_476d_1ce4_e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d0_49bb_1331_11ebL;
        return z ^ (z >>> 31);
    }

    /**
     * Returns the address of an operation, aligned to its own length.
     *
     * @param seed the sequence
     * @param number index in the sequence, from 0
     * @param blocks of the operation
     * @param range number of blocks from the first that are used
     * @return the first block
     */
    public static long address(long seed, long number, long blocks, long range) {
        if (blocks < 1 || blocks > range) {
            throw new IllegalArgumentException(blocks + " blocks in a range of " + range);
        }
        return Long.remainderUnsigned(mixed(seed, number), range / blocks) * blocks;
    }

    /**
     * Fills a buffer with the data of a seed.
     *
     * @param buffer a whole number of 8-byte words
     * @param seed the seed
     */
    public static void fill(byte[] buffer, long seed) {
        long key = mixed(seed, DATA_KEY);
        for (int at = 0; at < buffer.length; at += Long.BYTES) {
            WORDS.set(buffer, at, key + at);
        }
    }

    /**
     * Hashes a buffer by FNV-1a's step on words of 64 bits, with a fold so that high bits count.
     *
     * @param buffer a whole number of 8-byte words
     * @return the hash
     */
    public static long hash(byte[] buffer) {
        long sum = HASH_START;
        for (int at = 0; at < buffer.length; at += Long.BYTES) {
            sum = (sum ^ (long) WORDS.get(buffer, at)) * HASH_PRIME;
            sum ^= sum >>> HASH_FOLD;
        }
        return sum;
    }
}

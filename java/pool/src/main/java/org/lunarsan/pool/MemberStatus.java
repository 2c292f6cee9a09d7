package org.lunarsan.pool;

/**
 * Status of a member of a pool. Immutable and thread-safe.
 *
 * @param slot slot in the pool, from 0
 * @param name name of the device; empty when it is missing
 * @param state state of the member
 * @param outstanding number of pending reads
 * @param latencyNanos recent latency of its reads, in nanoseconds; 0: none was measured
 * @param regionsToCopy number of regions still to be copied to it
 * @param lastFailure its last failure; empty: none
 */
public record MemberStatus(
        int slot,
        String name,
        MemberState state,
        int outstanding,
        long latencyNanos,
        long regionsToCopy,
        String lastFailure) {}

package org.lunarsan.pool;

/**
 * How a member of a pool does. A value; for any thread.
 *
 * @param index its place in the pool, from 0
 * @param name the name of the device; empty when it is missing
 * @param state what it is good for
 * @param outstanding reads under way on it
 * @param latencyNanos how long its reads took lately, in nanoseconds; 0: none was measured
 * @param regionsToCopy regions that a copy still has to bring to it
 * @param lastFailure what it failed with last; empty: nothing
 */
public record MemberStatus(
        int index,
        String name,
        MemberState state,
        int outstanding,
        long latencyNanos,
        long regionsToCopy,
        String lastFailure) {}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * What each block of a device may hold, by what was written and flushed, and by the losses that
 * were reported. Blocks hold 0 at first. For one thread.
 */
final class BlockLedger {
    /** What one block may hold. */
    private static final class Block {
        /** What a read may find now. */
        Set<Integer> now = new HashSet<>(Set.of(0));
        /** What it could hold when a flush succeeded last, and all that was written since. */
        Set<Integer> afterLoss = new HashSet<>(Set.of(0));
    }

    private static final int EVENTS_MAX = 60;

    private final List<Block> blocks = new ArrayList<>();
    /** What happened last, for the message of a failure. */
    private final ArrayDeque<String> events = new ArrayDeque<>();

    BlockLedger(int count) {
        for (int block = 0; block < count; block++) {
            blocks.add(new Block());
        }
    }

    /** Notes something that explains a failure. */
    void note(String event) {
        events.add(event);
        if (events.size() > EVENTS_MAX) {
            events.poll();
        }
    }

    /** A write has ended; one that failed has written the block or not. */
    void wrote(int address, int value, boolean done) {
        Block block = blocks.get(address);
        note((done ? "wrote " : "failed to write ") + value + " to " + address);
        if (done) {
            block.now.clear();
        }
        block.now.add(value);
        block.afterLoss.add(value);
    }

    /** A flush has succeeded. */
    void flushed() {
        note("flushed");
        for (Block block : blocks) {
            block.afterLoss = new HashSet<>(block.now);
        }
    }

    /** A loss was reported, or a flush failed: nothing counts since the last good flush. */
    void lost() {
        note("lost");
        blocks.forEach(block -> block.now = new HashSet<>(block.afterLoss));
    }

    /** A read found a value, which is what all later reads find until the block is written. */
    void read(int address, int value) {
        Block block = blocks.get(address);
        assertTrue(block.now.contains(value), () -> "block " + address + " holds write " + value
                + ", not one of " + block.now + "; after a loss one of " + block.afterLoss
                + "; before: " + events);
        block.now = new HashSet<>(Set.of(value));
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * The values that each block of a device may hold, derived from writes, flushes and reported
 * losses. Blocks hold 0 at first. For one thread.
 */
final class BlockLedger {
    /** The possible values of one block. */
    private static final class Block {
        /** Values that a read may return now. */
        Set<Integer> now = new HashSet<>(Set.of(0));
        /** Values at the last successful flush, and all written since. */
        Set<Integer> afterLoss = new HashSet<>(Set.of(0));
    }

    private static final int EVENTS_MAX = 60;

    private final List<Block> blocks = new ArrayList<>();
    /** The last events, for the message of a failure. */
    private final ArrayDeque<String> events = new ArrayDeque<>();

    BlockLedger(int count) {
        for (int block = 0; block < count; block++) {
            blocks.add(new Block());
        }
    }

    /** Records an event that helps to explain a failure. */
    void note(String event) {
        events.add(event);
        if (events.size() > EVENTS_MAX) {
            events.poll();
        }
    }

    /** Records the end of a write; a failed one may or may not have written the block. */
    void wrote(int address, int value, boolean done) {
        Block block = blocks.get(address);
        note((done ? "wrote " : "failed to write ") + value + " to " + address);
        if (done) {
            block.now.clear();
        }
        block.now.add(value);
        block.afterLoss.add(value);
    }

    /** Records a successful flush. */
    void flushed() {
        note("flushed");
        for (Block block : blocks) {
            block.afterLoss = new HashSet<>(block.now);
        }
    }

    /**
     * Records a reported loss or a failed flush: writes since the last successful flush may be
     * gone.
     */
    void lost() {
        note("lost");
        blocks.forEach(block -> block.now = new HashSet<>(block.afterLoss));
    }

    /** Records a value read, which all later reads return until the block is written. */
    void read(int address, int value) {
        Block block = blocks.get(address);
        assertTrue(block.now.contains(value), () -> "block " + address + " holds write " + value
                + ", not one of " + block.now + "; after a loss one of " + block.afterLoss
                + "; before: " + events);
        block.now = new HashSet<>(Set.of(value));
    }
}

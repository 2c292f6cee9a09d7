package org.lunarsan.pool;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/**
 * The versions that each block of a device may hold, while several threads write, flush and read.
 * Each block has one writer. A version is a number that no other write has; 0 is written by nobody.
 *
 * <p>A read finds the newest acknowledged version or a later one, which was not acknowledged or is
 * under way. After a loss was reported or a flush failed, it finds the version of the last good
 * flush or any later one. For any thread.
 */
final class TrialLedger {
    /** Fills buffers that a device has given back: a block never holds it. */
    static final int NOISE = -1;

    private static final int EVENTS_MAX = 1000;
    private static final int EVENTS_TOLD_MAX = 80;

    /** A read found what it must not find. */
    static final class Violation extends AssertionError {
        private static final long serialVersionUID = 1L;

        Violation(String what) {
            super(what);
        }
    }

    private static final class Block {
        /** From the durable one on, oldest first. */
        final List<Integer> versions = new ArrayList<>(List.of(0));
        /** How many older ones were dropped. */
        long dropped;
        /** The oldest that a read may find, counted from the first of all. */
        long low;
        /** A write was given up that may still be under way: reads find it and the one before. */
        boolean restless;
    }

    /** Something that explains a violation; of no blocks: of all. */
    private record Event(String what, int first, int count) {}

    /** A flush that has begun. */
    record Flush(long[] lows, long losses, long cuts) {}

    /** A read that has begun. */
    record Look(
            int first, long[] lows, long losses, long cuts, long flushes, boolean certain) {}

    private final Block[] blocks;
    private final ArrayDeque<Event> events = new ArrayDeque<>();
    private long losses;
    /** Good flushes. */
    private long flushes;
    /** No flush has succeeded since the last loss: what reads find may change. */
    private boolean doubtful;
    /** Power cuts that nothing may have told of, and how many of them a good flush has followed. */
    private long cuts;
    private long cutsSettled;

    TrialLedger(int count) {
        blocks = new Block[count];
        for (int block = 0; block < count; block++) {
            blocks[block] = new Block();
        }
    }

    void note(String event) {
        note(event, 0, 0);
    }

    private synchronized void note(String what, int first, int count) {
        events.add(new Event(what, first, count));
        if (events.size() > EVENTS_MAX) {
            events.poll();
        }
    }

    /** What happened to a block, and to all, the latest last. */
    private List<String> history(int block) {
        List<String> found = events.stream()
                .filter(event -> event.count == 0
                        || block >= event.first && block < event.first + event.count)
                .map(Event::what).toList();
        return found.subList(Math.max(0, found.size() - EVENTS_TOLD_MAX), found.size());
    }

    /** A write of a new version begins; the number of losses so far goes to its end. */
    synchronized long beginWrite(int first, int count, int version) {
        for (int block = first; block < first + count; block++) {
            blocks[block].versions.add(version);
        }
        note("write " + version + " begins", first, count);
        return losses;
    }

    /**
     * A write has ended, or was given up; unless it was done it may have written each of its
     * blocks. One that is done comes after all that were given up.
     */
    synchronized void endWrite(
            int first, int count, boolean done, boolean givenUp, long lossesBefore) {
        note(done ? "written" : givenUp ? "given up" : "not written", first, count);
        for (int block = first; block < first + count; block++) {
            Block one = blocks[block];
            one.restless = !done && (givenUp || one.restless);
            if (done && losses == lossesBefore) {
                one.low = one.dropped + one.versions.size() - 1;
            }
        }
    }

    synchronized Flush beginFlush() {
        long[] lows = new long[blocks.length];
        for (int block = 0; block < blocks.length; block++) {
            lows[block] = blocks[block].low;
        }
        note("a flush begins");
        return new Flush(lows, losses, cuts);
    }

    synchronized void endFlush(Flush flush, boolean done) {
        if (!done) {
            lost("a flush failed");
            return;
        }
        if (flush.losses != losses) {
            return;
        }
        note("flushed");
        flushes++;
        doubtful = false;
        cutsSettled = Math.max(cutsSettled, flush.cuts);
        for (int block = 0; block < blocks.length; block++) {
            Block one = blocks[block];
            long more = flush.lows[block] - one.dropped;
            if (more > 0) {
                one.versions.subList(0, (int) more).clear();
                one.dropped += more;
            }
        }
    }

    /** All that was written since the last good flush may be gone. */
    synchronized void lost(String why) {
        note("lost: " + why);
        losses++;
        doubtful = true;
        for (Block block : blocks) {
            block.low = block.dropped;
        }
    }

    /** A member is about to lose something, and nothing tells of it before the next flush. */
    synchronized void cutUntold() {
        cuts++;
    }

    synchronized Look beginRead(int first, int count) {
        long[] lows = new long[count];
        for (int index = 0; index < count; index++) {
            lows[index] = blocks[first + index].low;
        }
        return new Look(first, lows, losses, cuts, flushes, isCertain());
    }

    private boolean isCertain() {
        return !doubtful && cuts == cutsSettled;
    }

    /**
     * A read has found versions.
     *
     * @param own by the writer of the blocks, which writes nothing meanwhile
     */
    synchronized void endRead(Look look, int[] found, boolean own) {
        for (int index = 0; index < found.length; index++) {
            int address = look.first + index;
            Block block = blocks[address];
            int version = found[index];
            int at = block.versions.indexOf(version);
            boolean tolerated = !look.certain || !isCertain()
                    || look.losses != losses || look.cuts != cuts;
            long low = Math.min(look.lows[index], block.low);
            // What was read before a flush may be older than the oldest that is left since.
            boolean tooOld = at < 0
                    ? own && !(tolerated && look.flushes != flushes)
                    : !tolerated && block.dropped + at < low;
            if (tooOld || version == NOISE) {
                throw new Violation("block " + address + " holds write " + version
                        + ", not one of " + block.versions + " from number "
                        + (low - block.dropped) + " on; before: " + history(address));
            }
            if (own) {
                note("read " + version, address, 1);
            }
            if (own && !tolerated && !block.restless) {
                block.low = Math.max(block.low, block.dropped + at);
            }
        }
    }
}

package org.lunarsan.pool;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/**
 * The versions that each block of a device may hold, while several threads write, flush and read.
 * Each block has one writer. A version is a number unique to one write; 0 is the initial content.
 *
 * <p>A read returns the newest acknowledged version or a later one, which was not acknowledged or
 * is pending. After a reported loss or a failed flush, it returns the version of the last
 * successful flush or any later one. Thread-safe.
 */
final class TrialLedger {
    /** Fills buffers that a device has given back: a block never holds it. */
    static final int NOISE = -1;

    private static final int EVENTS_MAX = 1000;
    private static final int EVENTS_TOLD_MAX = 80;

    /** Thrown when a read returned invalid data. */
    static final class Violation extends AssertionError {
        private static final long serialVersionUID = 1L;

        Violation(String what) {
            super(what);
        }
    }

    private static final class Block {
        /** Versions from the durable one on, oldest first. */
        final List<Integer> versions = new ArrayList<>(List.of(0));
        /** Number of older versions that were dropped. */
        long dropped;
        /** Number of the oldest version that a read may return, counted from the first of all. */
        long low;
        /** Set while an abandoned write may be pending: reads return it or the version before. */
        boolean restless;
    }

    /** An event that may explain a violation; without blocks: it concerns all. */
    private record Event(String what, int first, int count) {}

    /** A flush that has begun. */
    record Flush(long[] lows, long losses, long cuts) {}

    /** A read that has begun. */
    record Look(
            int first, long[] lows, long losses, long cuts, long flushes, boolean certain) {}

    private final Block[] blocks;
    private final ArrayDeque<Event> events = new ArrayDeque<>();
    private long losses;
    /** Number of successful flushes. */
    private long flushes;
    /** Set when no flush has succeeded since the last loss: results of reads may change. */
    private boolean unflushedLoss;
    /**
     * Number of power cuts that may be unreported, and number of those followed by a successful
     * flush.
     */
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

    /** Returns the events of a block, and those of all blocks, the latest last. */
    private List<String> history(int block) {
        List<String> found = events.stream()
                .filter(event -> event.count == 0
                        || block >= event.first && block < event.first + event.count)
                .map(Event::what).toList();
        return found.subList(Math.max(0, found.size() - EVENTS_TOLD_MAX), found.size());
    }

    /**
     * Begins a write of a new version. Returns the number of losses so far, for {@link #endWrite}.
     */
    synchronized long beginWrite(int first, int count, int version) {
        for (int block = first; block < first + count; block++) {
            blocks[block].versions.add(version);
        }
        note("write " + version + " begins", first, count);
        return losses;
    }

    /**
     * Ends a write, or records that it was abandoned; unless it was done, it may have written each
     * of its blocks. A write that is done follows all that were abandoned.
     */
    synchronized void endWrite(
            int first, int count, boolean done, boolean abandoned, long lossesBefore) {
        note(done ? "written" : abandoned ? "abandoned" : "not written", first, count);
        for (int block = first; block < first + count; block++) {
            Block one = blocks[block];
            one.restless = !done && (abandoned || one.restless);
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
        unflushedLoss = false;
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

    /** Records that all writes since the last successful flush may be gone. */
    synchronized void lost(String why) {
        note("lost: " + why);
        losses++;
        unflushedLoss = true;
        for (Block block : blocks) {
            block.low = block.dropped;
        }
    }

    /** Records that a member is about to lose data, which only the next flush reports. */
    synchronized void cutUnreported() {
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
        return !unflushedLoss && cuts == cutsSettled;
    }

    /**
     * Checks the versions that a read returned.
     *
     * @param own whether the caller is the writer of the blocks, which writes nothing meanwhile
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
            // Data read before a flush may be older than the oldest version left since.
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

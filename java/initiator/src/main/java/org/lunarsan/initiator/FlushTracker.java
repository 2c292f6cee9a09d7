package org.lunarsan.initiator;

/**
 * Tracks the acknowledged writes of one disk that a volatile cache may still hold, and whether they
 * may be lost. Resets of the unit are counted elsewhere; each call receives their current number.
 *
 * <p>Threads: any, behind one short lock.
 */
final class FlushTracker {
    /** Number of resets already taken into account. */
    private long resets;
    /**
     * Number of acknowledged writes, and how many of the first of them are durable or reported
     * lost.
     */
    private long acknowledged;
    private long settled;
    /** Number of times that writes may have been lost. */
    private long losses;
    /** Cause of the last loss; null: a reset, whose cause is kept elsewhere. */
    private LossCause cause;
    /** Set until the last loss was reported. */
    private boolean unreported;

    /** State at the begin of a flush. */
    record Flush(long covers, long losses) {
    }

    FlushTracker(long resets) {
        this.resets = resets;
    }

    /**
     * Records an acknowledged write that was sent after {@code sentAfter} resets. If a reset came
     * between sending and acknowledgement, the write may be lost, whichever the target did first.
     */
    synchronized void acknowledged(long sentAfter, long resetsNow) {
        countResets(resetsNow);
        if (sentAfter == resetsNow) {
            acknowledged++;
        } else {
            lost(null);
        }
    }

    /**
     * Begins a flush, which covers all writes acknowledged before. Returns null, once, if an
     * earlier loss has to be reported.
     */
    synchronized Flush begin(long resetsNow) {
        countResets(resetsNow);
        if (unreported) {
            unreported = false;
            return null;
        }
        return new Flush(acknowledged, losses);
    }

    /** True when there are writes that the flush has to make durable. */
    synchronized boolean isNeeded(Flush flush) {
        return flush.covers > settled;
    }

    /** Ends a flush that the target has completed. False when writes were lost since it began. */
    synchronized boolean end(Flush flush, long resetsNow) {
        countResets(resetsNow);
        if (losses != flush.losses) {
            unreported = false;
            return false;
        }
        settled = Math.max(settled, flush.covers);
        return true;
    }

    /** Returns the number of times that writes may have been lost. */
    synchronized long losses(long resetsNow) {
        countResets(resetsNow);
        return losses;
    }

    /** Records that acknowledged writes may be lost, for this cause; null: by a reset. */
    synchronized void lost(LossCause why) {
        losses++;
        cause = why;
        unreported = true;
    }

    /** Returns the cause of the last loss; {@code resetCause} is the cause of the last reset. */
    synchronized LossCause cause(LossCause resetCause) {
        return cause == null ? resetCause : cause;
    }

    private void countResets(long resetsNow) {
        if (resetsNow != resets && acknowledged > settled) {
            lost(null);
            settled = acknowledged;
        }
        resets = resetsNow;
    }
}

package org.lunarsan.initiator;

/**
 * The acknowledged writes of one disk that a volatile cache may still hold, and whether they may be
 * lost. Resets of the unit are counted elsewhere; each call is told how many there were.
 *
 * <p>Threads: any, behind one short lock.
 */
final class Unflushed {
    /** How many resets were looked at. */
    private long resets;
    /** Writes acknowledged, and how many of the first of them are durable or told to be lost. */
    private long acknowledged;
    private long settled;
    /** How often writes may have been lost. */
    private long losses;
    /** Why it was the last time; null: for a reset, whose cause is known elsewhere. */
    private LossCause cause;
    /** Nobody was told of the last loss yet. */
    private boolean untold;

    /** A flush that has begun. */
    record Flush(long covers, long losses) {
    }

    Unflushed(long resets) {
        this.resets = resets;
    }

    /**
     * A write was acknowledged that had been sent after {@code sentAfter} resets. One that a reset
     * came between may be lost, whichever came first.
     */
    synchronized void acknowledged(long sentAfter, long resetsNow) {
        look(resetsNow);
        if (sentAfter == resetsNow) {
            acknowledged++;
        } else {
            lost(null);
        }
    }

    /**
     * A flush begins; it covers what was acknowledged before. Null, once, when something was lost
     * before.
     */
    synchronized Flush begin(long resetsNow) {
        look(resetsNow);
        if (untold) {
            untold = false;
            return null;
        }
        return new Flush(acknowledged, losses);
    }

    /** There is anything that it has to make durable. */
    synchronized boolean isNeeded(Flush flush) {
        return flush.covers > settled;
    }

    /** The target said that it is done. False when something was lost since it began. */
    synchronized boolean end(Flush flush, long resetsNow) {
        look(resetsNow);
        if (losses != flush.losses) {
            untold = false;
            return false;
        }
        settled = Math.max(settled, flush.covers);
        return true;
    }

    /** How often writes may have been lost. */
    synchronized long losses(long resetsNow) {
        look(resetsNow);
        return losses;
    }

    /** What was acknowledged may be lost, for this cause; null: by a reset. */
    synchronized void lost(LossCause why) {
        losses++;
        cause = why;
        untold = true;
    }

    /** Why something was lost the last time, {@code ofReset} being the cause of the last reset. */
    synchronized LossCause cause(LossCause ofReset) {
        return cause == null ? ofReset : cause;
    }

    private void look(long resetsNow) {
        if (resetsNow != resets && acknowledged > settled) {
            lost(null);
            settled = acknowledged;
        }
        resets = resetsNow;
    }
}

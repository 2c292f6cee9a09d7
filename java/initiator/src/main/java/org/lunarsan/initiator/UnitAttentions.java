package org.lunarsan.initiator;

import org.lunarsan.iscsi.scsi.Sense;

/**
 * The unit attentions and deferred errors of a unit, recorded as they arrive, whichever command
 * they ended.
 *
 * <p>Threads: any, behind one short lock.
 */
final class UnitAttentions {
    /**
     * POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, and its special cases up to DEVICE INTERNAL
     * RESET: after any of them a volatile cache may be empty. SPC-4 annex F.
     */
    private static final int RESETS_FIRST = 0x2900;
    private static final int RESETS_LAST = 0x2904;
    /**
     * NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED: written data may be gone with the medium.
     */
    private static final int MEDIUM_MAY_HAVE_CHANGED = 0x2800;
    /** I_T NEXUS LOSS OCCURRED: the session was lost, the unit kept its cache. */
    private static final int NEXUS_LOSS = 0x2907;

    private volatile Runnable onLost = () -> { };
    private volatile long count;
    private volatile long resets;
    private volatile LossCause resetCause = LossCause.RESET;
    /** The last session in which the unit reported a reset. */
    private long resetIn = -1;
    /** The last session in which the unit reported a mere loss of the nexus. */
    private long nexusLostIn = -1;

    /** Sets the action to run when the unit reports that an acknowledged write has failed. */
    void onLost(Runnable action) {
        onLost = action;
    }

    /**
     * Records the sense data of a failed flush. Concurrent flushes may have been answered GOOD,
     * because a target reports such an error once.
     */
    void recordFailedFlush(Sense sense) {
        if (sense.key() == Sense.MEDIUM_ERROR || sense.key() == Sense.HARDWARE_ERROR) {
            onLost.run();
        }
    }

    /** Records the sense data with which a command of session {@code session} ended. */
    void record(Sense sense, long session) {
        // SPC-4 §4.5.7: not an error of this command. A recovered error is no loss.
        if (sense.isDeferred() && sense.key() != Sense.RECOVERED_ERROR) {
            onLost.run();
        }
        recordAttention(sense, session);
    }

    private synchronized void recordAttention(Sense sense, long session) {
        if (sense.key() != Sense.UNIT_ATTENTION) {
            return;
        }
        int code = sense.code();
        count = count + 1;
        if (code >= RESETS_FIRST && code <= RESETS_LAST || code == MEDIUM_MAY_HAVE_CHANGED) {
            resetCause = LossCause.RESET;
            resets = resets + 1;
            resetIn = session;
        } else if (code == NEXUS_LOSS) {
            nexusLostIn = session;
        }
    }

    /**
     * Records that a command of session {@code session} succeeded, so the unit has no more to
     * report about the begin of the session. A unit that reported nothing may have lost its cache.
     */
    synchronized void recordSessionStart(long session) {
        if (resetIn != session && nexusLostIn != session) {
            resetCause = LossCause.SESSION;
            resets = resets + 1;
            resetIn = session;
        }
    }

    /** Number of unit attentions. */
    long count() {
        return count;
    }

    /** Number of times that a volatile cache may have been lost. */
    long resets() {
        return resets;
    }

    /** Cause of the last of these. */
    LossCause resetCause() {
        return resetCause;
    }
}

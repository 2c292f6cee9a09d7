package org.lunarsan.initiator;

import org.lunarsan.iscsi.scsi.Sense;

/**
 * What a unit said unasked: unit attentions, noted as they come in, whoever's command they ended.
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
    /** NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED: what was written may be gone with it. */
    private static final int MEDIUM_MAY_HAVE_CHANGED = 0x2800;
    /** I_T NEXUS LOSS OCCURRED: our session went, the unit and its cache did not. */
    private static final int NEXUS_LOSS = 0x2907;

    private volatile Runnable onLost = () -> { };
    private volatile long count;
    private volatile long resets;
    private volatile LossCause resetCause = LossCause.RESET;
    /** The last session in which the unit told of a reset. */
    private long resetIn = -1;
    /** The last session in which it told that no more than the nexus was lost. */
    private long nexusLostIn = -1;

    /** From now on this is run when what was acknowledged is told to have failed later. */
    void onLost(Runnable what) {
        onLost = what;
    }

    /**
     * A flush ended with this sense. Those beside it may be told that all is well, for a target
     * tells such an error once.
     */
    void seeFlush(Sense sense) {
        if (sense.key() == Sense.MEDIUM_ERROR || sense.key() == Sense.HARDWARE_ERROR) {
            onLost.run();
        }
    }

    /** A command of session {@code session} ended with this sense. */
    void see(Sense sense, long session) {
        // SPC-4 §4.5.7: no error of this command. What was mended is no loss.
        if (sense.isDeferred() && sense.key() != Sense.RECOVERED_ERROR) {
            onLost.run();
        }
        note(sense, session);
    }

    private synchronized void note(Sense sense, long session) {
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
     * The unit took a command of session {@code session}, so it has said what it had to say of how
     * the session began. A unit that said nothing is not known to have kept its cache.
     */
    synchronized void begun(long session) {
        if (resetIn != session && nexusLostIn != session) {
            resetCause = LossCause.SESSION;
            resets = resets + 1;
            resetIn = session;
        }
    }

    /** How many there were. */
    long count() {
        return count;
    }

    /** How often a volatile cache may have been lost. */
    long resets() {
        return resets;
    }

    /** Why the last time. */
    LossCause resetCause() {
        return resetCause;
    }
}

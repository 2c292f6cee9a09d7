package org.lunarsan.pool;

import java.io.IOException;
import java.util.List;
import java.util.Random;
import org.lunarsan.device.Device;

/** The members of a mirror on trial, and their faults. For one thread at a time. */
interface TrialMembers extends AutoCloseable {
    /** Returns closed devices, labelled as the members of one mirror, whose first copy is done. */
    List<? extends Device> devices();

    /** Injects a fault into one member or several, and reports it to the ledger. */
    void fault(Random random, TrialRound round) throws Exception;

    /** Makes all members work again. */
    void heal() throws Exception;

    /**
     * Loses blocks that are considered clean but were never written. Called before the mirror is
     * closed, with nothing pending, because another opening has no record of an earlier failed
     * flush.
     */
    default void loseClean() throws Exception {}

    /** Cuts power after a flush, with nothing pending: flushed data stays. */
    default void cutAfterFlush() throws Exception {}

    /** Returns the data of each member, while they are closed. */
    List<byte[]> contents() throws Exception;

    /** Returns the time for which a mirror waits for a member behind another. */
    long memberMillisMax();

    /** Returns the longest time between two faults. */
    int pauseMillisMax();

    @Override
    void close() throws IOException;
}

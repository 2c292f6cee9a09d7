package org.lunarsan.pool;

import java.io.IOException;
import java.util.List;
import java.util.Random;
import org.lunarsan.device.Device;

/** The members of a mirror on trial, and what may happen to them. For one thread at a time. */
interface TrialMembers extends AutoCloseable {
    /** Closed, labelled as the members of one mirror, whose first copy is done. */
    List<? extends Device> devices();

    /** Something happens to one of them, or to several at once; the ledger is told of it. */
    void fault(Random random, TrialRound round) throws Exception;

    /** All of them work again. */
    void heal() throws Exception;

    /**
     * Before the mirror is closed, with nothing under way: what counts as clean and was never
     * written is lost now. Another opening knows nothing of a flush that failed before.
     */
    default void loseClean() throws Exception {}

    /** After a flush, and with nothing under way: what counts as flushed stays. */
    default void cutAfterFlush() throws Exception {}

    /** The data of each, while they are closed. */
    List<byte[]> contents() throws Exception;

    /** How long a mirror waits for one of them behind another. */
    long memberMillisMax();

    /** The most that passes between two faults. */
    int pauseMillisMax();

    @Override
    void close() throws IOException;
}

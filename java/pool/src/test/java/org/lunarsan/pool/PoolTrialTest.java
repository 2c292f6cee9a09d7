package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * A sample of the trial that {@code scripts/java-trial} runs at length, with a fixed seed; without
 * iSCSI, which needs a build of {@code lunar}.
 */
class PoolTrialTest {
    private static final int WRITES = 1000;
    private static final long SEED = 18;

    /** Goal: no read returns invalid data, and members end equal. */
    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "ISCSI")
    void noFlushedWriteIsLostUnreported(PoolTrial.Mode mode) throws Exception {
        PoolTrial trial = new PoolTrial(mode, "");
        assertEquals(0, trial.run(SEED, WRITES), "violations, printed above");
        assertTrue(trial.counts().comparisons.sum() > 0);
    }

    /** Goal: the ledger detects a stale block, noise, and a block lost after a flush. */
    @Test
    void theLedgerFindsErrors() {
        TrialLedger ledger = new TrialLedger(2);
        write(ledger, 1);
        write(ledger, 2);
        read(ledger, 2);
        assertThrows(TrialLedger.Violation.class, () -> read(ledger, 1));
        assertThrows(TrialLedger.Violation.class, () -> read(ledger, TrialLedger.NOISE));
        ledger.lost("a power cut");
        read(ledger, 0);
        write(ledger, 3);
        ledger.endFlush(ledger.beginFlush(), true);
        ledger.lost("a power cut");
        read(ledger, 3);
        assertThrows(TrialLedger.Violation.class, () -> read(ledger, 0));
    }

    private static void write(TrialLedger ledger, int version) {
        ledger.endWrite(0, 2, true, false, ledger.beginWrite(0, 2, version));
    }

    private static void read(TrialLedger ledger, int found) {
        ledger.endRead(ledger.beginRead(0, 2), new int[] {found, found}, true);
    }
}

package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** The pauses between logins. */
final class BackoffTest {
    private static final long SEED = 20261123;
    private static final long MIN = Backoff.PAUSE_MIN.toNanos();
    private static final long MAX = Backoff.PAUSE_MAX.toNanos();

    /** Goal: pauses double from the minimum to the maximum, each between its half and its whole. */
    @Test
    void pausesDoubleUpToALimit() {
        Random random = new Random(SEED);
        for (int turn = 0; turn < 1000; turn++) {
            long entropy = turn == 0 ? 0 : random.nextLong();
            Backoff backoff = new Backoff(entropy);
            long whole = MIN;
            for (int number = 0; number < 20; number++) {
                long pause = backoff.next();
                long most = whole;
                int at = number;
                assertTrue(pause >= most / 2 && pause <= most, () -> "pause " + at + " of entropy "
                        + entropy + " is " + pause + " ns, of " + most + "; seed " + SEED);
                whole = Math.min(2 * whole, MAX);
            }
            assertEquals(MAX, whole);
        }
    }

    /** Goal: initiators that lose a target together do not log in again at the same time. */
    @Test
    void initiatorsDiffer() {
        Random random = new Random(SEED);
        Set<Long> thirds = new HashSet<>();
        long least = Long.MAX_VALUE;
        long most = 0;
        for (int number = 0; number < 1000; number++) {
            Backoff backoff = new Backoff(random.nextLong());
            backoff.next();
            backoff.next();
            long third = backoff.next();
            thirds.add(third);
            least = Math.min(least, third);
            most = Math.max(most, third);
        }
        assertTrue(thirds.size() > 990, () -> "only " + thirds.size() + " differ; seed " + SEED);
        long spread = most - least;
        // All possible third pauses lie between 2 and 4 times the shortest pause.
        assertTrue(spread > 2 * MIN * 9 / 10, () -> "they lie within " + spread + " ns; seed "
                + SEED);
    }
}

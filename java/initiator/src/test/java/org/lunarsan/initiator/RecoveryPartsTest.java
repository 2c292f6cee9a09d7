package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.VitalPage.Designator;

/** The parts of recovery, each by itself. */
final class RecoveryPartsTest {
    private static final long SECOND = 1_000_000_000L;

    /** Goal: pauses grow up to a limit, and differ between initiators. */
    @Test
    void pausesDoubleAndAreSpread() {
        Backoff first = new Backoff(1);
        Backoff second = new Backoff(2_000_003);
        long most = Backoff.PAUSE_MIN.toNanos();
        int differ = 0;
        for (int round = 0; round < 100; round++) {
            long one = first.next();
            long other = second.next();
            assertTrue(one >= most / 2 && one <= most && other >= most / 2 && other <= most);
            differ += one == other ? 0 : 1;
            most = Math.min(2 * most, Backoff.PAUSE_MAX.toNanos());
        }
        assertEquals(Backoff.PAUSE_MAX.toNanos(), most);
        assertTrue(differ > 90);
    }

    /**
     * Goal: a recovery time of zero means no wait; messages say whether the command was sent, and
     * which attempts failed.
     */
    @Test
    void withoutRecoveryTimeALossIsAnError() throws Failure {
        Failure lost = Failure.of(Kind.SESSION_LOST, "it closed the connection");
        Failure failure = assertThrows(Failure.class,
                () -> new RetryDeadline(Duration.ZERO).lost(lost, 0));
        assertEquals(Kind.SESSION_LOST, failure.kind());
        assertEquals(lost.getMessage(), failure.getMessage());
        Failure unsent = assertThrows(Failure.class,
                () -> new RetryDeadline(Duration.ZERO).lost(lost.notSent(), 0));
        assertEquals(Kind.NOT_SENT, unsent.kind());
        RetryDeadline deadline = new RetryDeadline(Duration.ofSeconds(5));
        deadline.lost(lost.notSent(), 7 * SECOND);
        assertEquals(12 * SECOND, deadline.until());
        deadline.lost(lost, 8 * SECOND);
        assertEquals(12 * SECOND, deadline.until(), "the time runs from the first loss");
        assertThrows(Failure.class, () -> deadline.lost(lost, 12 * SECOND));
        Failure over = deadline.over("3 logins failed");
        assertEquals(Kind.SESSION_LOST, over.kind());
        assertEquals("it closed the connection (lost 3 times), and was not re-established within"
                + " 5 s: 3 logins failed", over.getMessage());
    }

    /** Goal: a write waits for overlapping uncertain writes, until a login settles them. */
    @Test
    void overlappingWritesWait() {
        UncertainWrites uncertainWrites = new UncertainWrites();
        uncertainWrites.hold(1, 10, 5);
        uncertainWrites.hold(2, 14, 2);
        assertTrue(uncertainWrites.overlaps(14, 1, UncertainWrites.NEW));
        assertTrue(uncertainWrites.overlaps(0, 11, UncertainWrites.NEW));
        assertFalse(uncertainWrites.overlaps(0, 10, UncertainWrites.NEW));
        assertFalse(uncertainWrites.overlaps(16, 9, UncertainWrites.NEW));
        uncertainWrites.replaced(2);
        assertFalse(
                uncertainWrites.overlaps(10, 4, UncertainWrites.NEW), "its session was replaced");
        assertTrue(
                uncertainWrites.overlaps(14, 1, UncertainWrites.NEW),
                "it is of that session itself");
        CompletableFuture<Void> waits = CompletableFuture.runAsync(() -> {
            while (uncertainWrites.isAny()) {
                uncertainWrites.awaitChange(SECOND);
            }
        });
        uncertainWrites.replaced(3);
        waits.join();
        uncertainWrites.hold(1, 0, 8);
        assertFalse(uncertainWrites.isAny(), "reported late: its session was replaced before");
    }

    /**
     * Goal: a lost write goes before newer ones, of several the oldest first, and never waits for
     * itself.
     */
    @Test
    void lostWritesGoFirst() {
        UncertainWrites uncertainWrites = new UncertainWrites();
        long older = uncertainWrites.replay(10, 5);
        long newer = uncertainWrites.replay(12, 5);
        assertFalse(uncertainWrites.overlaps(10, 5, older));
        assertTrue(uncertainWrites.overlaps(12, 5, newer), "the older goes first");
        assertTrue(uncertainWrites.overlaps(14, 1, UncertainWrites.NEW));
        assertFalse(uncertainWrites.overlaps(17, 1, UncertainWrites.NEW));
        uncertainWrites.replayed(older);
        assertFalse(uncertainWrites.overlaps(12, 5, newer));
        assertTrue(uncertainWrites.overlaps(14, 1, UncertainWrites.NEW));
        uncertainWrites.replayed(newer);
        assertFalse(uncertainWrites.isAny());
    }

    /** Goal: a reset between an acknowledged write and the end of its flush is reported once. */
    @Test
    void aPossibleLossIsReportedOnce() {
        FlushTracker disk = new FlushTracker(1);
        assertTrue(disk.end(disk.begin(1), 2), "nothing was written");
        disk.acknowledged(2, 2);
        assertTrue(disk.end(disk.begin(2), 2));
        assertNotNull(disk.begin(3), "all was flushed before the reset");
        disk.acknowledged(3, 3);
        assertNull(disk.begin(4));
        assertNotNull(disk.begin(4), "told once");
    }

    /** Goal: each flush concurrent to a loss fails; later writes wait for the next flush. */
    @Test
    void allConcurrentFlushesReportTheLoss() {
        FlushTracker disk = new FlushTracker(0);
        disk.acknowledged(0, 0);
        FlushTracker.Flush first = disk.begin(0);
        FlushTracker.Flush second = disk.begin(0);
        assertFalse(disk.end(first, 1));
        assertFalse(disk.end(second, 1));
        FlushTracker.Flush flush = disk.begin(1);
        disk.acknowledged(1, 1);
        assertTrue(disk.end(flush, 1));
        assertNull(disk.begin(2), "the flush had begun before the write");
        FlushTracker late = new FlushTracker(0);
        FlushTracker.Flush begun = late.begin(1);
        late.acknowledged(0, 1);
        assertFalse(late.end(begun, 1), "an acknowledgement from before the reset");
    }

    /** Goal: a deferred error fails pending flushes and the next one, with or without a cache. */
    @Test
    void deferredErrorsFailFlushes() {
        FlushTracker disk = new FlushTracker(0);
        UnitAttentions unit = new UnitAttentions();
        unit.onLost(() -> disk.lost(LossCause.WRITE_ERROR));
        byte[] sense = MiniTarget.senseOf(Sense.MEDIUM_ERROR, 0x0c00, -1);
        unit.record(Sense.decode(sense), 1);
        FlushTracker.Flush first = disk.begin(0);
        FlushTracker.Flush second = disk.begin(0);
        assertNotNull(first, "it is the error of that command alone");
        sense[0] = 0x71;
        unit.record(Sense.decode(sense), 1);
        assertFalse(disk.end(first, 0));
        assertFalse(disk.end(second, 0));
        unit.record(Sense.decode(sense), 1);
        assertNull(disk.begin(0));
        assertNotNull(disk.begin(0), "told once");
    }

    /** Goal: only a session that begins with a mere nexus loss keeps the cache. */
    @Test
    void aNexusLossAloneIsNoCacheLoss() {
        UnitAttentions unit = new UnitAttentions();
        unit.record(attention(0x2900), 1);
        unit.recordSessionStart(1);
        assertEquals(1, unit.resets(), "reported, and counted once");
        unit.record(attention(0x2907), 2);
        unit.recordSessionStart(2);
        assertEquals(1, unit.resets());
        unit.recordSessionStart(3);
        unit.recordSessionStart(3);
        assertEquals(2, unit.resets(), "the unit reported nothing");
        unit.record(attention(0x2904), 3);
        unit.record(attention(0x2800), 3);
        assertEquals(4, unit.resets(), "in the middle of a session as well");
        assertEquals(4, unit.count());
    }

    private static Sense attention(int code) {
        return Sense.decode(MiniTarget.senseOf(Sense.UNIT_ATTENTION, code, -1));
    }

    /** Goal: only the same disk, as large as before or larger, is accepted. */
    @Test
    void anotherDiskIsRefused() {
        Fingerprint opened = disk("naa1", 512, 1000);
        assertNull(opened.differs(opened));
        assertNull(opened.differs(disk("naa1", 512, 1001)), "growing is no harm");
        for (Fingerprint other : List.of(disk("naa2", 512, 1000), disk("naa1", 4096, 1000),
                disk("naa1", 512, 999), new Fingerprint(List.of(), "a b 1", 512, 1000))) {
            assertEquals(Kind.CHANGED, opened.differs(other).kind());
        }
        assertTrue(opened.differs(disk("naa2", 512, 1000)).getMessage()
                .contains("`naa2` instead of `naa1`"));
    }

    private static Fingerprint disk(String text, int blockBytes, long blockCount) {
        return new Fingerprint(List.of(new Designator(0, 3, text)), "", blockBytes, blockCount);
    }
}

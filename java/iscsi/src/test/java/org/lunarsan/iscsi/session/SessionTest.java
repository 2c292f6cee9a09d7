package org.lunarsan.iscsi.session;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.BitSet;
import java.util.OptionalLong;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.text.SessionParameters;

/** Numbers, window and end of a session. */
class SessionTest {
    private int wakes;

    private static SessionParameters parameters(int connections) {
        SessionParameters plain = SessionParameters.DEFAULT;
        return new SessionParameters(plain.sessionType(), connections, false, true, 65_536, 65_536,
                2, 20, 1, true, true, 0, plain.taskReporting(), 1);
    }

    private InitiatorSession joined(int cmdSn, int connections) {
        InitiatorSession session = new InitiatorSession(5, cmdSn);
        for (int cid = 1; cid <= connections; cid++) {
            assertTrue(session.open(cid, () -> wakes++).isPresent());
            session.joined(cid, 9, parameters(connections));
        }
        return session;
    }

    /** Goal: only allowed connections open, with the right numbers. RFC 7143 §6.3, §13.2. */
    @Test
    void onlyAllowedConnectionsOpen() {
        InitiatorSession session = new InitiatorSession(5, 100);
        assertEquals(new LoginNumbers(5, 0, 100), session.open(1, () -> { }).orElseThrow());
        assertTrue(session.open(2, () -> { }).isEmpty(), "the leading login is not through");
        assertEquals(InitiatorSession.NO_NUMBER, session.takeCmdSn(1));
        session.joined(1, 9, parameters(2));
        assertEquals(new LoginNumbers(5, 9, 100), session.open(2, () -> { }).orElseThrow());
        assertTrue(session.open(2, () -> { }).isEmpty() && session.open(3, () -> { }).isEmpty());
        assertNotEquals(session.ordinal(1), session.ordinal(2));
        session.closed(1, ConnectionEnding.CONNECTION_LOGOUT);
        assertTrue(session.open(3, () -> { }).isPresent());
        assertNotEquals(session.ordinal(3), session.ordinal(2));
    }

    /** Goal: a failed leading login ends the session. */
    @Test
    void aFailedLeadingLoginEndsTheSession() {
        InitiatorSession session = new InitiatorSession(5, 100);
        session.open(1, () -> { });
        session.closed(1, ConnectionEnding.NOT_JOINED);
        assertEquals(ConnectionEnding.NOT_JOINED, session.ending().orElseThrow());
    }

    /**
     * Goal: numbers ascend only within the window, also over the wrap, for any received windows.
     */
    @Test
    void windowsAgreeWithAModel() {
        Random random = Seed.of(SessionTest.class);
        for (int round = 0; round < 300; round++) {
            int first = random.nextInt();
            InitiatorSession session = joined(first, 2);
            long next = 0;
            long seen = 0;
            long last = -1;
            for (int step = 0; step < 100; step++) {
                if (random.nextInt(3) == 0) {
                    // Both only grow in practice, but PDUs of two connections overtake each other.
                    long exp = random.nextLong(next + 1);
                    long max = exp - 1 + random.nextInt(8);
                    session.window(first + (int) exp, first + (int) max);
                    seen = Math.max(seen, exp);
                    last = Math.max(last, max);
                } else {
                    long got = session.takeCmdSn(1 + random.nextInt(2));
                    boolean open = next >= seen && next <= last;
                    assertEquals(open ? Integer.toUnsignedLong(first + (int) next) : -1, got);
                    next += open ? 1 : 0;
                }
            }
        }
    }

    /** Goal: inconsistent windows, or those with numbers never assigned, are ignored. */
    @Test
    void hostileWindows() {
        InitiatorSession session = joined(100, 1);
        session.window(101, 200);
        session.window(100, 98);
        session.window(100, 99 + (1 << 31));
        assertEquals(InitiatorSession.NO_NUMBER, session.takeCmdSn(1));
        session.window(100, 100);
        assertEquals(1, wakes);
        assertEquals(100, session.takeCmdSn(1));
        assertEquals(101, session.currentCmdSn());
    }

    /**
     * Goal: while a function holds numbers back none is assigned; afterwards waiting requests
     * proceed.
     */
    @Test
    void heldNumbersAreNotAssigned() {
        InitiatorSession session = joined(100, 2);
        session.window(100, 110);
        session.hold(1);
        session.hold(2);
        assertEquals(InitiatorSession.NO_NUMBER, session.takeCmdSn(2));
        session.release(1);
        session.release(1);
        assertEquals(InitiatorSession.NO_NUMBER, session.takeCmdSn(2));
        session.closed(2, ConnectionEnding.CONNECTION_LOGOUT);
        assertEquals(100, session.takeCmdSn(1), "a hold goes with its connection");
    }

    /** Goal: a lost connection ends the session if a number was lost with it. §4.2.2.1. */
    @Test
    void lostNumbers() {
        InitiatorSession session = joined(100, 2);
        session.window(100, 110);
        session.takeCmdSn(1);
        session.window(101, 110);
        session.closed(1, ConnectionEnding.LOST);
        assertNull(session.takeMessage(2), "its number had arrived");
        session = joined(100, 2);
        session.window(100, 110);
        session.takeCmdSn(1);
        session.closed(1, ConnectionEnding.LOST);
        assertInstanceOf(SessionMessage.Close.class, session.takeMessage(2));
        assertEquals(InitiatorSession.NO_NUMBER, session.takeCmdSn(2));
        session.closed(2, ConnectionEnding.LOST);
        assertEquals(ConnectionEnding.LOST, session.ending().orElseThrow());
        session = joined(100, 2);
        session.window(100, 110);
        session.takeCmdSn(1);
        session.closed(1, ConnectionEnding.CONNECTION_LOGOUT);
        assertInstanceOf(SessionMessage.Close.class, session.takeMessage(2), "logged out as well");
    }

    /**
     * Goal: during a logout of the session, other connections may end without changing its result.
     */
    @Test
    void aLogoutKeepsItsResult() {
        InitiatorSession session = joined(100, 2);
        session.loggingOut(1);
        assertInstanceOf(SessionMessage.LoggingOut.class, session.takeMessage(2));
        session.closed(2, ConnectionEnding.LOST);
        assertNull(session.takeMessage(1));
        session.closed(1, ConnectionEnding.SESSION_LOGOUT);
        assertEquals(ConnectionEnding.SESSION_LOGOUT, session.ending().orElseThrow());
        assertTrue(session.open(3, () -> { }).isEmpty());
    }

    /** Goal: an end without a logout reaches all connections. */
    @Test
    void anEndReachesAllConnections() {
        InitiatorSession session = joined(100, 2);
        session.end();
        assertEquals(2, wakes);
        assertInstanceOf(SessionMessage.Close.class, session.takeMessage(1));
        assertInstanceOf(SessionMessage.Close.class, session.takeMessage(2));
    }

    /** Goal: no two sessions with a target share an ISID, and the same few are reused. */
    @Test
    void isidsAreNeverShared() {
        Random random = Seed.of(SessionTest.class);
        IsidPool pool = new IsidPool(0xabcdef);
        assertEquals(OptionalLong.of(0x80ab_cdef_0000L), pool.take("iqn.a"));
        assertEquals(OptionalLong.of(0x80ab_cdef_0000L), pool.take("iqn.b"));
        pool.giveBack("iqn.a", 0x80ab_cdef_0000L);
        BitSet taken = new BitSet();
        for (int step = 0; step < 3000; step++) {
            if (random.nextInt(3) > 0) {
                int free = taken.nextClearBit(0);
                assertEquals(OptionalLong.of(0x80ab_cdef_0000L | free), pool.take("iqn.a"));
                taken.set(free);
            } else {
                int some = taken.nextSetBit(random.nextInt(10));
                if (some >= 0) {
                    pool.giveBack("iqn.a", 0x80ab_cdef_0000L | some);
                    taken.clear(some);
                }
            }
            assertEquals(taken.cardinality() + 1, pool.inUse());
        }
    }
}

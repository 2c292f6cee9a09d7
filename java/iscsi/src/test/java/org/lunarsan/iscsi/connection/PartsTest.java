package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.pdu.BasicHeader;

/** The small parts of a connection, against plain models. */
class PartsTest {
    private static final int LAST_ORDINAL = 62;

    /** Goal: pieces in any order are accepted once and counted correctly. Method: a bitmap. */
    @Test
    void coverageAgreesWithABitmap() {
        Random random = Seed.of(PartsTest.class);
        for (int round = 0; round < 2000; round++) {
            Coverage done = new Coverage();
            BitSet bits = new BitSet();
            for (int piece = 0; piece < 40; piece++) {
                int from = random.nextInt(256);
                int to = from + random.nextInt(round % 2 == 0 ? 12 : 64);
                boolean repeats = !bits.get(from, to).isEmpty();
                String misfit = done.add(from, to - from, 256, false);
                assertEquals(to > 256 || repeats, misfit != null, from + " to " + to);
                if (misfit == null) {
                    bits.set(from, to);
                }
                assertEquals(bits.cardinality(), done.total());
                assertEquals(bits.nextClearBit(0), done.contiguous());
                assertEquals(done.total() == done.contiguous(), done.isWhole());
            }
        }
    }

    /** Goal: numbers of a peer do not overflow, negotiated order is enforced, gaps are bounded. */
    @Test
    void coverageIsBounded() {
        Coverage done = new Coverage();
        assertNull(done.add(0, 4, 10, true));
        assertTrue(done.add(5, 1, 10, true) != null);
        assertTrue(done.add(4, 7, 10, true) != null);
        assertTrue(done.add(-1, 2, 10, true) != null);
        assertTrue(done.add(4, -1, 10, true) != null);
        assertNull(done.add(4, 0, 10, true));
        assertNull(done.add(4, 6, 10, true));
        done.reset(0);
        int gaps = 0;
        while (done.add(2 * gaps + 1, 1, 1 << 20, false) == null) {
            gaps++;
        }
        assertEquals(Coverage.RANGES_MAX, gaps);
    }

    /** Goal: tags are unique, found only while pending, and not reused soon. */
    @Test
    void tags() {
        Random random = Seed.of(PartsTest.class);
        SlotTable table = new SlotTable(LAST_ORDINAL);
        List<Request> openRequests = new ArrayList<>();
        Set<Integer> recent = new HashSet<>();
        ArrayDeque<Integer> order = new ArrayDeque<>();
        for (int step = 0; step < 200_000; step++) {
            boolean puts = random.nextInt(openRequests.size() + 1) < 2000 && random.nextInt(5) > 1;
            if (puts && openRequests.size() < SlotTable.CAPACITY_MAX) {
                Request request = new Ping(new byte[0]);
                table.put(request);
                assertNotEquals(BasicHeader.TAG_RESERVED, request.tag);
                assertTrue(recent.add(request.tag), "given again");
                order.add(request.tag);
                if (order.size() > 50_000) {
                    recent.remove(order.poll());
                }
                openRequests.add(request);
                assertSame(request, table.find(request.tag));
            } else if (!openRequests.isEmpty()) {
                Request request = openRequests.remove(random.nextInt(openRequests.size()));
                table.remove(request);
                assertNull(table.find(request.tag));
            }
            assertEquals(openRequests.size(), table.used());
        }
        openRequests.forEach(request -> assertSame(request, table.find(request.tag)));
    }

    /** Goal: all slots can be taken, and no more. */
    @Test
    void aFullTable() {
        SlotTable table = new SlotTable(0);
        Set<Integer> tags = new HashSet<>();
        for (int at = 0; at < SlotTable.CAPACITY_MAX; at++) {
            Request request = new Ping(new byte[0]);
            table.put(request);
            assertTrue(tags.add(request.tag));
        }
        assertThrows(IllegalStateException.class, () -> table.put(new Ping(new byte[0])));
    }

    /** Goal: the linked queue is a queue, from which any element can be removed. */
    @Test
    void queues() {
        Random random = Seed.of(PartsTest.class);
        RequestQueue queue = new RequestQueue();
        List<Request> model = new ArrayList<>();
        for (int step = 0; step < 20_000; step++) {
            int what = random.nextInt(4);
            if (what < 2) {
                Request request = new Ping(new byte[0]);
                queue.add(request);
                model.add(request);
            } else if (what == 2) {
                assertSame(model.isEmpty() ? null : model.removeFirst(), queue.poll());
            } else if (!model.isEmpty()) {
                Request request = model.remove(random.nextInt(model.size()));
                assertTrue(queue.remove(request));
                assertTrue(!queue.remove(request) && !queue.contains(request));
            }
            assertSame(model.isEmpty() ? null : model.getFirst(), queue.peek());
            assertEquals(model.isEmpty(), queue.isEmpty());
        }
    }

    /** Goal: the newest ended tags are kept. */
    @Test
    void endedTags() {
        EndedTags tags = new EndedTags();
        for (int tag = 0; tag < 3000; tag++) {
            tags.add(tag);
        }
        assertTrue(!tags.contains(3000 - EndedTags.ENDED_TAGS_MAX - 1));
        assertTrue(tags.contains(3000 - EndedTags.ENDED_TAGS_MAX) && tags.contains(2999));
        tags.remove(2500);
        assertTrue(!tags.contains(2500) && tags.contains(2501) && tags.contains(2499));
    }
}

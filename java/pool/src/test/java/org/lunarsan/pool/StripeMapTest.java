package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class StripeMapTest {
    /** Goal: each block has one location, and the parts of a run are runs of exactly its blocks. */
    @Test
    void everyRunIsSplitIntoMemberRuns() {
        for (int members = 2; members <= 4; members++) {
            for (int stripe = 1; stripe <= 4; stripe++) {
                StripeMap map = new StripeMap(members, stripe);
                Set<List<Long>> locations = new HashSet<>();
                for (long address = 0; address < 60; address++) {
                    long member = map.member(address);
                    assertTrue(locations.add(List.of(member, map.block(address))));
                }
                runs(map);
            }
        }
    }

    private static void runs(StripeMap map) {
        for (long first = 0; first < 40; first++) {
            for (long end = first; end < 40; end++) {
                long covered = 0;
                for (int member = 0; member < map.members(); member++) {
                    covered += map.firstFrom(member, end) - map.firstFrom(member, first);
                }
                assertEquals(end - first, covered);
                for (long address = first; address < end; address++) {
                    int member = map.member(address);
                    long block = map.block(address);
                    assertTrue(block >= map.firstFrom(member, first));
                    assertTrue(block < map.firstFrom(member, end));
                }
            }
        }
    }
}

package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;

class BlockCacheTest {
    private static final int KEPT = 200_000;

    private static BlockCache filled() {
        BlockCache cache = new BlockCache(512, KEPT + 100_000);
        for (long address = 0; address < KEPT; address++) {
            cache.putRead(address, ByteBuffer.allocate(512), cache.stamp(address));
        }
        assertEquals(KEPT, cache.size());
        return cache;
    }

    private static boolean holds(BlockCache cache, long address) {
        return cache.get(address, ByteBuffer.allocate(512));
    }

    /** Fault: an unmap of 8 blocks iterated over the whole cache, twice: 21 ms in one of 1 GiB. */
    @Test
    void aShortUnmapLooksForItsBlocksOnly() {
        BlockCache cache = filled();
        cache.beginUnmap(1000, 8);
        cache.endUnmap();
        assertTrue(cache.visited() <= 8, () -> "blocks looked at: " + cache.visited());
        assertEquals(KEPT - 8, cache.size());
        assertTrue(holds(cache, 999) && holds(cache, 1008));
        assertTrue(!holds(cache, 1000) && !holds(cache, 1007));
    }

    /** Goal: an unmap of more blocks than are kept visits only the kept ones. */
    @Test
    void aLongUnmapLooksAtKeptBlocksOnly() {
        BlockCache cache = filled();
        cache.beginUnmap(10, Long.MAX_VALUE - 10);
        cache.endUnmap();
        assertTrue(cache.visited() <= KEPT, () -> "blocks looked at: " + cache.visited());
        assertEquals(10, cache.size());
        assertTrue(holds(cache, 9) && !holds(cache, 10));
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.BitSet;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.testkit.Seed;

class PoolLabelTest {
    private static PoolLabel label() {
        BitSet current = new BitSet();
        current.set(1, 3);
        return new PoolLabel(PoolKind.MIRRORED, new UUID(1, 2), 1, 3, 512, 1024, 128, 7, current,
                List.of(77L, 66L));
    }

    /** Goal: a label is decoded to its encoded fields, and the bytes are those of the document. */
    @Test
    void encodingAndDecodingAgree() {
        byte[] bytes = label().encode().array();
        PoolLabel.Valid found =
                assertInstanceOf(PoolLabel.Valid.class, PoolLabel.decode(bytes));
        assertEquals(label(), found.label());
        ByteBuffer at = ByteBuffer.wrap(bytes);
        assertEquals(0x4C756E6172504C00L, at.getLong(0));
        assertEquals(1, at.getShort(8));
        assertEquals(2, at.get(10));
        assertEquals(512, at.getInt(12));
        assertEquals(2, at.getLong(24));
        assertEquals(1, at.getShort(32));
        assertEquals(3, at.getShort(34));
        assertEquals(1024, at.getLong(40));
        assertEquals(128, at.getLong(48));
        assertEquals(7, at.getLong(56));
        assertEquals(6, at.getLong(64));
        assertEquals(77, at.getLong(72));
        assertEquals(66, at.getLong(80));
        assertEquals(0, at.getLong(88));
    }

    /** Goal: a label recognizes the generations that led to it. */
    @Test
    void knowsItsHistory() {
        PoolLabel first = label();
        PoolLabel next = first;
        PoolLabel other = first;
        for (int step = 1; step < PoolLabel.HISTORY_MAX; step++) {
            next = next.next(first.current());
            other = other.next(first.current());
            assertTrue(next.descendsFrom(first));
            assertTrue(next.descendsFrom(next));
            assertFalse(next.descendsFrom(other));
        }
        for (int step = 0; step < 100; step++) {
            next = next.next(first.current());
        }
        assertEquals(PoolLabel.HISTORY_MAX, next.history().size());
        assertTrue(next.descendsFrom(first), "too long ago to be told");
        assertInstanceOf(PoolLabel.Valid.class, PoolLabel.decode(next.encode().array()));
    }

    /** Goal: any changed bit is detected. */
    @Test
    void detectsAnyFlippedBit() {
        byte[] bytes = label().encode().array();
        for (int bit = 0; bit < 400 * 8; bit++) {
            bytes[bit / 8] ^= (byte) (1 << bit % 8);
            assertFalse(PoolLabel.decode(bytes) instanceof PoolLabel.Valid, "bit " + bit);
            bytes[bit / 8] ^= (byte) (1 << bit % 8);
        }
        assertInstanceOf(PoolLabel.Valid.class, PoolLabel.decode(bytes));
    }

    /** Goal: hostile fields with a good checksum are rejected, without an unchecked exception. */
    @Test
    void survivesHostileFields() {
        Seed.run(random -> {
            PoolLayout layout = new PoolLayout(512, 4096);
            for (int round = 0; round < 20_000; round++) {
                byte[] bytes = label().encode().array();
                for (int change = 0; change <= random.nextInt(4); change++) {
                    bytes[10 + random.nextInt(62)] = (byte) (random.nextBoolean()
                            ? random.nextInt() : random.nextInt(3) - 1);
                }
                ByteBuffer.wrap(bytes).putInt(PoolLabel.BYTES - 4, PoolLabel.crc(bytes));
                if (PoolLabel.decode(bytes) instanceof PoolLabel.Valid valid) {
                    PoolLabel label = valid.label();
                    assertTrue(label.slot() < label.count());
                    if (label.contradicts(layout).isEmpty()) {
                        assertTrue(label.dataBlocks() <= layout.dataBlocksMax());
                    }
                }
                IntentPage.decode(bytes, label().pool(), 8);
            }
        });
    }

    /** Goal: an intent page is decoded to its fields; one of another pool or shape is rejected. */
    @Test
    void intentsSurviveEncoding() {
        BitSet dirty = new BitSet();
        dirty.set(0);
        dirty.set(IntentPage.REGIONS_MAX - 1);
        UUID pool = new UUID(5, 6);
        IntentPage page = new IntentPage(pool, 9, IntentPage.REGIONS_MAX, dirty);
        byte[] bytes = page.encode().array();
        assertEquals(page, IntentPage.decode(bytes, pool, IntentPage.REGIONS_MAX).orElseThrow());
        assertTrue(IntentPage.decode(bytes, new UUID(5, 7), IntentPage.REGIONS_MAX).isEmpty());
        assertTrue(IntentPage.decode(bytes, pool, 8).isEmpty());
        bytes[100] ^= 1;
        assertTrue(IntentPage.decode(bytes, pool, IntentPage.REGIONS_MAX).isEmpty());
    }
}

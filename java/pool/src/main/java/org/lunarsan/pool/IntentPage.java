package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Optional;
import java.util.UUID;

/**
 * The regions of a mirror in which its members may differ; docs/formats/pool.md describes the
 * bytes. Immutable and thread-safe.
 *
 * @param pool the pool
 * @param sequence sequence number; the higher of two pages is the valid one
 * @param regions number of regions
 * @param dirty the regions in which writes may be pending
 */
record IntentPage(UUID pool, long sequence, int regions, BitSet dirty) {
    static final int BYTES = 4096;

    private static final int HEADER_BYTES = 40;

    /** Limited by the bits that fit into a page. */
    static final int REGIONS_MAX = (BYTES - HEADER_BYTES - Integer.BYTES) * Byte.SIZE;

    private static final int VERSION = 1;
    private static final byte[] MAGIC = "LunarWI\0".getBytes(StandardCharsets.US_ASCII);

    IntentPage {
        dirty = (BitSet) dirty.clone();
    }

    ByteBuffer encode() {
        ByteBuffer to = ByteBuffer.allocate(BYTES);
        to.put(MAGIC).putShort((short) VERSION).putShort((short) 0).putInt(regions);
        to.putLong(pool.getMostSignificantBits()).putLong(pool.getLeastSignificantBits());
        to.putLong(sequence).put(dirty.toByteArray());
        to.putInt(BYTES - Integer.BYTES, PoolLabel.crc(to.array()));
        return to.clear();
    }

    /** Decodes untrusted bytes; empty unless they are a page of this pool. */
    static Optional<IntentPage> decode(byte[] bytes, UUID pool, long regions) {
        ByteBuffer from = ByteBuffer.wrap(bytes).position(MAGIC.length);
        if (!Arrays.equals(bytes, 0, MAGIC.length, MAGIC, 0, MAGIC.length)
                || from.getInt(BYTES - Integer.BYTES) != PoolLabel.crc(bytes)
                || from.getShort() != VERSION) {
            return Optional.empty();
        }
        from.getShort();
        int count = from.getInt();
        UUID id = new UUID(from.getLong(), from.getLong());
        long sequence = from.getLong();
        byte[] bits = Arrays.copyOfRange(bytes, HEADER_BYTES, BYTES - Integer.BYTES);
        BitSet dirty = BitSet.valueOf(bits);
        if (count != regions || !id.equals(pool) || dirty.length() > regions || sequence < 0) {
            return Optional.empty();
        }
        return Optional.of(new IntentPage(id, sequence, count, dirty));
    }
}

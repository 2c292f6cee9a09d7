package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.zip.CRC32C;

/**
 * The label of a member of a pool, which describes the member and the pool; docs/formats/pool.md
 * describes the bytes. Immutable and thread-safe.
 *
 * @param kind how the pool joins its members
 * @param pool the pool
 * @param slot the slot of this member, from 0
 * @param count number of members
 * @param blockSize bytes of a block of every member
 * @param dataBlocks number of data blocks of each member
 * @param unitBlocks blocks of a stripe, or of a region of a mirror
 * @param generation raised whenever the members' states change
 * @param current the members that had all data in that generation
 * @param history a random number of this generation, and of those before it, the latest first
 */
record PoolLabel(
        PoolKind kind,
        UUID pool,
        int slot,
        int count,
        int blockSize,
        long dataBlocks,
        long unitBlocks,
        long generation,
        BitSet current,
        List<Long> history) {
    static final int BYTES = 4096;
    static final int MEMBERS_MIN = 2;
    static final int MEMBERS_MAX = 64;
    static final int VERSION = 1;

    /**
     * Number of generations for which it can be decided whether a label belongs to this history.
     */
    static final int HISTORY_MAX = 32;

    /** Kind of a pool that this library cannot open. */
    private static final int CONCATENATED = 3;

    private static final byte[] MAGIC = "LunarPL\0".getBytes(StandardCharsets.US_ASCII);
    private static final int CRC_OFFSET = BYTES - Integer.BYTES;

    PoolLabel {
        current = (BitSet) current.clone();
        history = List.copyOf(history);
    }

    /** Returns the history of the first generation of a pool. */
    static List<Long> newHistory() {
        return List.of(randomId());
    }

    /** Never 0, which means none. */
    private static long randomId() {
        return ThreadLocalRandom.current().nextLong(1, Long.MAX_VALUE);
    }

    /** Returns the label of another member of the same pool. */
    PoolLabel at(int member) {
        return new PoolLabel(kind, pool, member, count, blockSize, dataBlocks, unitBlocks,
                generation, current, history);
    }

    /** Returns the label of the next generation. */
    PoolLabel next(BitSet newCurrent) {
        List<Long> ids = new ArrayList<>(history);
        ids.addFirst(randomId());
        List<Long> kept = ids.subList(0, Math.min(ids.size(), HISTORY_MAX));
        return new PoolLabel(kind, pool, slot, count, blockSize, dataBlocks, unitBlocks,
                generation + 1, newCurrent, kept);
    }

    /** True if an older label, or one of the same generation, belongs to the same history. */
    boolean descendsFrom(PoolLabel older) {
        long back = generation - older.generation;
        return back >= history.size() || history.get((int) back).equals(older.history.getFirst());
    }

    /** True if all fields match that must be equal on all labels of a pool. */
    boolean isSamePool(PoolLabel other) {
        return kind == other.kind && pool.equals(other.pool) && count == other.count
                && blockSize == other.blockSize && dataBlocks == other.dataBlocks
                && unitBlocks == other.unitBlocks;
    }

    ByteBuffer encode() {
        ByteBuffer to = ByteBuffer.allocate(BYTES);
        to.put(MAGIC).putShort((short) VERSION).put((byte) kind.code()).put((byte) 0);
        to.putInt(blockSize);
        to.putLong(pool.getMostSignificantBits()).putLong(pool.getLeastSignificantBits());
        to.putShort((short) slot).putShort((short) count).putInt(0);
        to.putLong(dataBlocks).putLong(unitBlocks).putLong(generation);
        long[] bits = current.toLongArray();
        to.putLong(bits.length == 0 ? 0 : bits[0]);
        history.forEach(to::putLong);
        to.putInt(CRC_OFFSET, crc(to.array()));
        return to.clear();
    }

    /** Result of decoding a label. */
    sealed interface Found {}

    /** No label: other bytes. */
    record None() implements Found {}

    /** A damaged label, or one of a later version. */
    record Unusable(String why) implements Found {}

    /** A valid label. */
    record Valid(PoolLabel label) implements Found {}

    /** Decodes untrusted bytes. */
    static Found decode(byte[] bytes) {
        if (!Arrays.equals(bytes, 0, MAGIC.length, MAGIC, 0, MAGIC.length)) {
            return new None();
        }
        ByteBuffer from = ByteBuffer.wrap(bytes).position(MAGIC.length);
        int version = Short.toUnsignedInt(from.getShort());
        if (from.getInt(CRC_OFFSET) != crc(bytes)) {
            return new Unusable("its checksum is wrong");
        }
        if (version != VERSION) {
            return new Unusable("it has version " + version + ", this program knows " + VERSION);
        }
        int kindCode = Byte.toUnsignedInt(from.get());
        PoolKind kind = PoolKind.of(kindCode);
        if (kindCode == CONCATENATED) {
            return new Unusable("it belongs to a concatenation, which only Lunar itself can open");
        }
        from.get();
        int blockSize = from.getInt();
        UUID pool = new UUID(from.getLong(), from.getLong());
        int slot = Short.toUnsignedInt(from.getShort());
        int count = Short.toUnsignedInt(from.getShort());
        from.getInt();
        long dataBlocks = from.getLong();
        long unitBlocks = from.getLong();
        long generation = from.getLong();
        BitSet current = BitSet.valueOf(new long[] {from.getLong()});
        List<Long> history = new ArrayList<>();
        for (int back = 0; back < HISTORY_MAX; back++) {
            long id = from.getLong();
            if (id == 0) {
                break;
            }
            history.add(id);
        }
        boolean sound = kind != null && count >= MEMBERS_MIN && count <= MEMBERS_MAX
                && slot < count && current.length() <= count
                && dataBlocks > 0 && unitBlocks > 0 && generation > 0
                && generation < Long.MAX_VALUE && !history.isEmpty();
        if (!sound) {
            return new Unusable("its fields contradict each other");
        }
        return new Valid(new PoolLabel(kind, pool, slot, count, blockSize, dataBlocks, unitBlocks,
                generation, current, history));
    }

    /**
     * Returns why this label does not fit a device; empty if all its blocks lie within the device.
     */
    Optional<String> contradicts(PoolLayout layout) {
        if (blockSize != layout.blockSize()) {
            return Optional.of("it describes blocks of " + blockSize + " bytes, the device has "
                    + layout.blockSize());
        }
        if (dataBlocks > layout.dataBlocksMax()) {
            return Optional.of("it speaks of " + dataBlocks + " blocks of data, the device has room"
                    + " for " + layout.dataBlocksMax());
        }
        boolean mirrorFits = kind == PoolKind.STRIPED
                || PoolLayout.regions(dataBlocks, unitBlocks) <= IntentPage.REGIONS_MAX;
        boolean stripesFit = kind == PoolKind.MIRRORED
                || unitBlocks <= Integer.MAX_VALUE / blockSize && dataBlocks % unitBlocks == 0
                        && dataBlocks <= Long.MAX_VALUE / blockSize / count;
        return mirrorFits && stripesFit
                ? Optional.empty()
                : Optional.of("its unit of " + unitBlocks + " blocks does not fit its size");
    }

    static int crc(byte[] bytes) {
        CRC32C crc = new CRC32C();
        crc.update(bytes, 0, CRC_OFFSET);
        return (int) crc.getValue();
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.BitSet;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.Operation;

class MemberAreaTest {
    private static final int WRITES = 2;

    /**
     * Goal: a member has a valid label after any two failed writes of labels. Fault: the first copy
     * was always written first, so a failure there left none intact if the second copy was damaged
     * already. Method: the first or second write of each label is torn, in all combinations.
     */
    @Test
    void failedWritesLeaveOneLabelIntact() throws Exception {
        for (int torn = 0; torn < WRITES * WRITES; torn++) {
            try (FaultyDevice disk = new FaultyDevice(
                    Members.memory("disk", Members.BLOCK, Members.BLOCKS), 0)) {
                disk.open();
                MemberArea.writeLabel(disk, label(1));
                writeTorn(disk, label(2), torn / WRITES);
                writeTorn(disk, label(3), torn % WRITES);
                assertInstanceOf(PoolLabel.Valid.class, MemberArea.readLabel(disk),
                        "combination " + torn);
                MemberArea.writeLabel(disk, label(4));
                assertEquals(new PoolLabel.Valid(label(4)), MemberArea.readLabel(disk));
            }
        }
    }

    /** Writes a label; after {@code whole} writes one is torn, and fails. */
    private static void writeTorn(FaultyDevice disk, PoolLabel label, int whole) {
        Fault tear = Fault.of(new Fault.Tear(1)).on(Operation.WRITE);
        disk.inject(tear.after(whole).times(1));
        assertThrows(DeviceException.class, () -> MemberArea.writeLabel(disk, label));
    }

    private static PoolLabel label(long generation) {
        BitSet current = new BitSet();
        current.set(0, 2);
        return new PoolLabel(PoolKind.MIRRORED, new UUID(1, 2), 0, 2, Members.BLOCK,
                Members.BLOCKS, 128, generation, current, List.of(generation));
    }
}

package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.lunarsan.pool.Members.filled;

import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;

/** Fault: a mirror logged nothing when members were left out or writes were lost. */
class MirrorLogTest {
    private static final int DATA = PoolLayout.FRONT_BYTES / Members.BLOCK;

    /** With names that no other test uses. */
    private final List<MemoryDevice> disks = List.of(
            Members.memory("logged0", Members.BLOCK, Members.BLOCKS),
            Members.memory("logged1", Members.BLOCK, Members.BLOCKS));
    private final List<VolatileDevice> caches = disks.stream().map(VolatileDevice::new).toList();
    private final List<FaultyDevice> members = Members.faulty(caches, 1);
    private final MirroredDevice pool = MirroredDevice.of(members);

    @BeforeEach
    void open() throws Exception {
        Members.mirror(disks);
        pool.open();
    }

    @AfterEach
    void close() {
        Members.drop(pool);
    }

    private void assertLogged(String level, String words) {
        List<String> lines = RecordedLog.lines();
        assertTrue(lines.stream().anyMatch(line -> line.startsWith(level + " " + pool.name() + ": ")
                && line.contains(words)), () -> "no '" + words + "' in " + lines);
    }

    /**
     * Goal: a line names a member that is left out with the reason; others report the copy to it.
     */
    @Test
    void aMemberLeftOutIsLogged() throws Exception {
        members.get(1).inject(Fault.fail().on(Operation.WRITE).at(DATA, 1).times(1));
        pool.write(0, filled(1, 1));
        assertLogged("WARNING", "member logged1 is left out: logged1: write of blocks 2048+1");
        pool.resync().join();
        assertLogged("INFO", "a copy to member logged1 has begun");
        assertLogged("INFO", "the copy to member logged1 is done");
    }

    /** Goal: a line reports lost writes, and that the next flush fails. */
    @Test
    void aLossOfAllMembersIsLogged() throws Exception {
        pool.write(0, filled(1, 1));
        for (VolatileDevice cache : caches) {
            cache.cutPower();
        }
        assertThrows(PoisonedException.class, pool::flush);
        assertLogged(
                "WARNING",
                "no member has all acknowledged writes; the content of logged0 is used");
    }
}

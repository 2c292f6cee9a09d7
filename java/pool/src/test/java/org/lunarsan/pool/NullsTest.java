package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.MemoryDevice;

/** Null arguments are reported by name where they are passed. */
class NullsTest {
    /** A call that rejects null. */
    private interface Call {
        void run() throws Exception;
    }

    private static void assertNames(String argument, Call call) {
        NullPointerException missing = assertThrows(NullPointerException.class, call::run);
        assertEquals(argument, missing.getMessage());
    }

    private static void assertNamesBuffers(Device device) {
        assertNames("buffer", () -> device.read(0, (ByteBuffer) null));
        assertNames("buffer", () -> device.write(0, (ByteBuffer) null));
        assertNames("buffer", () -> device.read(0, (byte[]) null));
        assertNames("buffer", () -> device.write(0, (byte[]) null));
    }

    /** Goal: pools name a null buffer, open or not. */
    @Test
    void buffersAreNamed() throws Exception {
        List<MemoryDevice> copies = Members.memories(2);
        List<MemoryDevice> stripes = Members.memories(2);
        Members.mirror(copies);
        StripedDevice.create(stripes, 8);
        MirroredDevice mirror = MirroredDevice.of(copies);
        for (Device pool : List.of(mirror, StripedDevice.of(stripes))) {
            assertNamesBuffers(pool);
            try (pool) {
                pool.open();
                assertNamesBuffers(pool);
            }
        }
        assertNames("device", () -> mirror.replace(0, null));
    }

    /** Goal: a null member, or list of members, is named. */
    @Test
    void membersAreNamed() {
        List<Device> one = Arrays.asList(Members.memories(1).getFirst(), null);
        assertNames("members", () -> MirroredDevice.of(null));
        assertNames("members", () -> MirroredDevice.ofDegraded(null));
        assertNames("members", () -> MirroredDevice.create(null));
        assertNames("members", () -> MirroredDevice.createErased(null));
        assertNames("members", () -> StripedDevice.of(null));
        assertNames("members", () -> StripedDevice.create(null, 8));
        assertNames("a member", () -> MirroredDevice.of(one));
        assertNames("a member", () -> StripedDevice.create(one, 8));
        assertNames("device", () -> PoolLabels.clear(null));
    }
}

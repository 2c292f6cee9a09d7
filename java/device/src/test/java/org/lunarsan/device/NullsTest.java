package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Null arguments are reported by name where they are passed. */
class NullsTest {
    @TempDir Path folder;

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

    private static MemoryDevice memory() {
        return new MemoryDevice(512, 8);
    }

    /** Goal: each device names a null buffer, open or not. */
    @Test
    void buffersAreNamed() throws Exception {
        for (Device device : List.of(memory(),
                FileDevice.create(folder.resolve("disk"), 512, 8),
                new FaultyDevice(memory(), 1), new CachedDevice(memory(), 4096),
                new CoalescingDevice(memory()), AsyncDevice.of(memory()),
                new ForwardingDevice(memory()) { })) {
            assertNamesBuffers(device);
            try (device) {
                device.open();
                assertNamesBuffers(device);
                if (device instanceof AsyncDevice async) {
                    assertNames("buffer", () -> async.readAsync(0, null));
                    assertNames("buffer", () -> async.writeAsync(0, null));
                }
            }
        }
        assertNames("buffer",
                () -> new Geometry(512, 8).checkBuffer("disk", Operation.READ, 0, null));
    }

    /** Goal: null arguments of constructors and factories are named. */
    @Test
    void partsAreNamed() {
        Geometry shape = new Geometry(512, 8);
        assertNames("path", () -> FileDevice.of(null, 512));
        assertNames("path", () -> FileDevice.readOnly(null, 512));
        assertNames("path", () -> FileDevice.create(null, 512, 8));
        assertNames("name", () -> new MemoryDevice(null, shape));
        assertNames("geometry", () -> new MemoryDevice("disk", null));
        assertNames("inner", () -> new CachedDevice(null, 4096));
        assertNames("inner", () -> new CoalescingDevice(null));
        assertNames("options", () -> new CoalescingDevice(memory(), null));
        assertNames("inner", () -> new FaultyDevice(null, 1));
        assertNames("fault", () -> new FaultyDevice(memory(), 1).inject(null));
        assertNames("effect", () -> Fault.of(null));
        assertNames("factory", () -> new Fault.Fail(null));
        assertNames("time", () -> new Fault.Delay(null));
        assertNames("device", () -> AsyncDevice.of(null));
        assertNames("device", () -> AsyncDevice.of(null, Runnable::run));
        assertNames("executor", () -> AsyncDevice.of(memory(), null));
    }
}

package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

class FaultyDeviceTest {
    private static FaultyDevice device(long seed) throws DeviceException {
        FaultyDevice device = new FaultyDevice(new MemoryDevice(512, 64), seed);
        device.open();
        return device;
    }

    private static byte[] blocks(int count) {
        byte[] blocks = new byte[512 * count];
        Arrays.fill(blocks, (byte) 7);
        return blocks;
    }

    /** Goal: a fault occurs at its operation, blocks and turn, as often as configured. */
    @Test
    void failsAtTheChosenOperation() throws Exception {
        FaultyDevice device = device(0);
        Fault fault = Fault.of(new Fault.Fail(NoSpaceException::new)).on(Operation.WRITE);
        device.inject(fault.at(10, 2).after(1).times(2));
        device.read(10, blocks(1));
        device.write(9, blocks(1));
        device.write(12, blocks(1));
        device.write(11, blocks(1));
        assertThrows(NoSpaceException.class, () -> device.write(9, blocks(2)));
        assertThrows(NoSpaceException.class, () -> device.write(11, blocks(5)));
        device.write(11, blocks(5));
        assertThrows(OutOfRangeException.class, () -> device.write(11, blocks(60)));
        assertEquals(2, device.fired());
        assertEquals(6, device.seen(Operation.WRITE));
    }

    /** Goal: a torn write leaves its first blocks new and its last ones old. */
    @Test
    void tearsWrites() throws Exception {
        FaultyDevice device = device(0);
        device.inject(Fault.of(new Fault.Tear(2)).times(1));
        assertThrows(MediumException.class, () -> device.write(0, blocks(4)));
        byte[] found = new byte[4 * 512];
        device.read(0, found);
        assertEquals(7, found[1023]);
        assertEquals(0, found[1024]);
    }

    /** Goal: a flip changes one bit of the data read or written, and not the caller's buffer. */
    @Test
    void flipsABit() throws Exception {
        FaultyDevice device = device(3);
        device.inject(Fault.of(new Fault.Flip()).on(Operation.WRITE).times(1));
        byte[] data = blocks(2);
        device.write(0, data);
        assertEquals(0, differentBits(data, blocks(2)));
        byte[] found = new byte[1024];
        device.read(0, found);
        assertEquals(1, differentBits(data, found));
        device.write(0, data);
        device.inject(Fault.of(new Fault.Flip()).on(Operation.READ).times(1));
        device.read(0, found);
        assertEquals(1, differentBits(data, found));
        device.read(0, found);
        assertEquals(0, differentBits(data, found));
    }

    private static int differentBits(byte[] one, byte[] other) {
        int bits = 0;
        for (int index = 0; index < one.length; index++) {
            bits += Integer.bitCount((one[index] ^ other[index]) & 0xFF);
        }
        return bits;
    }

    /** Goal: a failed flush poisons until the device is healed. */
    @Test
    void poisonsAfterAFailedFlush() throws Exception {
        FaultyDevice device = device(0);
        device.inject(Fault.fail().on(Operation.FLUSH).times(1));
        assertThrows(MediumException.class, device::flush);
        assertThrows(PoisonedException.class, device::flush);
        assertThrows(PoisonedException.class, () -> device.write(0, blocks(1)));
        device.read(0, blocks(1));
        device.heal();
        device.flush();
    }

    /** Goal: a poisoned device refuses before a fault has any effect: nothing is torn. */
    @Test
    void refusesBeforeItTears() throws Exception {
        FaultyDevice device = device(0);
        device.inject(Fault.fail().on(Operation.FLUSH).times(1));
        device.inject(Fault.of(new Fault.Tear(2)).on(Operation.WRITE).times(1));
        assertThrows(MediumException.class, device::flush);
        assertThrows(PoisonedException.class, () -> device.write(0, blocks(4)));
        byte[] found = new byte[4 * 512];
        device.read(0, found);
        assertArrayEquals(new byte[4 * 512], found, "nothing was written");
        assertEquals(1, device.fired());
        assertEquals(0, device.seen(Operation.WRITE));
    }

    /** Goal: a hanging operation continues after release, and fails after close. */
    @Test
    void hangs() throws Exception {
        FaultyDevice device = device(0);
        device.inject(Fault.of(new Fault.Hang()).on(Operation.FLUSH).times(2));
        CompletableFuture<Void> first = AsyncDevice.of(device).flushAsync();
        device.awaitHanging(1);
        assertTrue(!first.isDone());
        device.release();
        first.join();
        CompletableFuture<Void> second = AsyncDevice.of(device).flushAsync();
        device.awaitHanging(1);
        device.close();
        Throwable failure = second.handle((done, thrown) -> thrown).join();
        assertEquals(DeviceClosedException.class, failure.getClass());
    }

    /** Goal: a released operation does not count as hanging, even before it has continued. */
    @Test
    void aReleasedOperationContinues() throws Exception {
        AtomicReference<Runnable> atName = new AtomicReference<>(() -> { });
        FaultyDevice device = new FaultyDevice(new ForwardingDevice(new MemoryDevice(512, 64)) {
            @Override
            public String name() {
                atName.getAndSet(() -> { }).run();
                return super.name();
            }
        }, 0);
        device.open();
        device.inject(Fault.fail().on(Operation.FLUSH));
        device.inject(Fault.of(new Fault.Hang()).on(Operation.READ));
        assertThrows(MediumException.class, device::flush);
        CompletableFuture<Void> first =
                AsyncDevice.of(device).readAsync(0, ByteBuffer.allocate(512));
        device.awaitHanging(1);
        // A poisoned device calls name() with its lock held: no other operation continues
        // meanwhile.
        AtomicReference<CompletableFuture<Void>> second = new AtomicReference<>();
        atName.set(() -> {
            device.release();
            second.set(AsyncDevice.of(device).readAsync(0, ByteBuffer.allocate(512)));
            assertDoesNotThrow(() -> device.awaitHanging(1));
            device.release();
        });
        assertThrows(PoisonedException.class, device::flush);
        first.get(1, TimeUnit.MINUTES);
        second.get().get(1, TimeUnit.MINUTES);
    }

    /** Goal: a hanging operation can be released as soon as its fault is counted. */
    @Test
    void aCountedFaultCanBeReleased() throws Exception {
        FaultyDevice device = device(0);
        device.inject(Fault.of(new Fault.Hang()).on(Operation.FLUSH));
        // The critical moment is short: run as many rounds as there is time for.
        long until = System.nanoTime() + 1_000_000_000L;
        for (int round = 1; round == 1 || until - System.nanoTime() > 0; round++) {
            CompletableFuture<Void> flush = AsyncDevice.of(device).flushAsync();
            while (device.fired() < round) {
                Thread.onSpinWait();
            }
            device.release();
            flush.get(1, TimeUnit.MINUTES);
        }
    }

    /**
     * Goal: the seed determines the random faults: the same faults in every run, about as many as
     * configured.
     */
    @Test
    void followsTheSeed() throws Exception {
        assertEquals(run(1), run(1));
        assertNotEquals(run(1), run(2));
        long failed = run(3).stream().filter(bad -> bad).count();
        assertTrue(failed > 50 && failed < 200, failed + " of 1000");
    }

    private static List<Boolean> run(long seed) throws Exception {
        FaultyDevice device = device(seed);
        device.inject(Fault.fail().perMillion(100_000));
        List<Boolean> failed = new ArrayList<>();
        for (int step = 0; step < 1000; step++) {
            try {
                device.write(0, blocks(1));
                failed.add(false);
            } catch (MediumException exception) {
                failed.add(true);
            }
        }
        return failed;
    }
}

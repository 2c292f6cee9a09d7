package org.lunarsan.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.ForwardingDevice;

class MirrorReadLossTest {
    private static final long WAIT_SECONDS = 20;
    private static final long SLOW_MILLIS = 1000;

    private final AtomicReference<VolatileDevice> cutOnRead = new AtomicReference<>();
    private final CountDownLatch asked = new CountDownLatch(1);
    private final CountDownLatch copied = new CountDownLatch(1);
    private volatile Thread reader;

    /**
     * A member that loses power at the first read of the reader, and delays the check for losses.
     */
    private final class PowerLossDevice extends ForwardingDevice {
        private final VolatileDevice cache;

        PowerLossDevice(VolatileDevice cache) {
            super(cache);
            this.cache = cache;
        }

        @Override
        public void read(long address, ByteBuffer buffer) throws DeviceException {
            if (reader != null && cutOnRead.compareAndSet(null, cache)) {
                cache.cutPower();
                super.read(address, buffer);
                asked.countDown();
                return;
            }
            super.read(address, buffer);
        }

        @Override
        public long losses() {
            if (Thread.currentThread() == reader && cutOnRead.get() == cache) {
                // If the check holds a lock that the copy needs, the copy cannot continue: wait a
                // limited time.
                try {
                    copied.await(SLOW_MILLIS, TimeUnit.MILLISECONDS);
                } catch (InterruptedException unexpected) {
                    throw new AssertionError(unexpected);
                }
            }
            return super.losses();
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            assertTrue(latch.await(WAIT_SECONDS, TimeUnit.SECONDS));
        } catch (InterruptedException unexpected) {
            throw new AssertionError(unexpected);
        }
    }

    /**
     * Fault: a member lost a write during a read, was left out, and was copied to before the reader
     * checked for losses: the check found none, and the read returned the lost data.
     */
    @Test
    void aLossRepairedMeanwhileIsSeen() throws Exception {
        var disks = Members.memories(2);
        Members.mirror(disks);
        List<Device> members = disks.stream()
                .<Device>map(disk -> new PowerLossDevice(new VolatileDevice(disk))).toList();
        try (MirroredDevice pool = MirroredDevice.of(members)) {
            pool.open();
            pool.write(5, Members.filled(1, 1));
            pool.flush();
            pool.write(5, Members.filled(2, 1));
            AtomicReference<byte[]> found = new AtomicReference<>();
            CountDownLatch begin = new CountDownLatch(1);
            Thread thread = Thread.ofPlatform().start(() -> {
                await(begin);
                try {
                    found.set(Members.read(pool, 5, 1));
                } catch (DeviceException failure) {
                    throw new AssertionError(failure);
                }
            });
            reader = thread;
            begin.countDown();
            await(asked);
            pool.flush();
            pool.resync().join();
            pool.copies().join();
            copied.countDown();
            thread.join();
            assertEquals(2, found.get()[0]);
        }
    }
}

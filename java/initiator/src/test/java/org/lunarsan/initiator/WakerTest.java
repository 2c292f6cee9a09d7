package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.pdu.ScsiCommand;

/** Waking of virtual threads that wait. */
final class WakerTest {
    private static final long SEED = 20261123;
    private static final long LONG_NANOS = 1L << 40;

    /** A sender that counts. */
    private static final class Counting implements Waker.SenderState {
        final AtomicBoolean held = new AtomicBoolean();
        final AtomicInteger sent = new AtomicInteger();

        @Override
        public boolean hold() {
            return held.compareAndSet(false, true);
        }

        @Override
        public void release() {
            held.set(false);
            sent.incrementAndGet();
        }
    }

    private static List<Thread> waiting(int count, CountDownLatch woken) {
        List<Thread> waiters = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            waiters.add(Thread.ofPlatform().daemon().start(() -> {
                LockSupport.park();
                woken.countDown();
            }));
        }
        return waiters;
    }

    /** Goal: waiting threads are woken even if no virtual thread gets to run. */
    @Test
    void aReaderIsWokenWhileCarriersAreBusy() throws Exception {
        Counting sending = new Counting();
        Waker waker = new Waker(sending);
        AtomicBoolean enough = new AtomicBoolean();
        int carriers = Runtime.getRuntime().availableProcessors();
        CountDownLatch spinning = new CountDownLatch(carriers);
        for (int number = 0; number < carriers; number++) {
            Thread.startVirtualThread(() -> {
                spinning.countDown();
                while (!enough.get()) {
                    Thread.onSpinWait();
                }
            });
        }
        try {
            spinning.await();
            CountDownLatch woken = new CountDownLatch(3);
            waker.wake(waiting(3, woken), 0);
            assertTrue(waker.isBusy());
            waker.wakeIfLate(1);
            assertTrue(waker.isBusy(), "the virtual thread still has time");
            waker.wakeIfLate(LONG_NANOS);
            woken.await();
            assertFalse(waker.isBusy());
            assertFalse(waker.takeOver(), "nothing was held");
        } finally {
            enough.set(true);
            waker.close();
        }
    }

    /** Goal: threads woken together send together, and the sender is released once. */
    @Test
    void wokenSendersShareOneWrite() throws Exception {
        Counting sending = new Counting();
        Waker waker = new Waker(sending);
        try {
            for (int batch = 1; batch <= 100; batch++) {
                CountDownLatch woken = new CountDownLatch(3);
                waker.wake(waiting(3, woken), 0);
                woken.await();
                while (waker.isBusy()) {
                    Thread.onSpinWait();
                }
                assertEquals(batch, sending.sent.get());
                assertFalse(sending.held.get());
            }
        } finally {
            waker.close();
        }
    }

    /** Goal: many virtual threads read and write correct data, whatever happens to sessions. */
    @Test
    void manyVirtualThreads() throws Exception {
        AtomicInteger commands = new AtomicInteger();
        IscsiOptions two = IscsiOptions.builder().connections(2).build();
        try (MiniTarget target = new MiniTarget(64).withoutWait();
                IscsiDevice disk = IscsiDevice.open(target.url(), two);
                ExecutorService each = Executors.newVirtualThreadPerTaskExecutor()) {
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof ScsiCommand && commands.incrementAndGet() % 1000 == 0) {
                    target.cutAll();
                }
                return false;
            };
            List<Future<?>> ends = new ArrayList<>();
            for (int number = 0; number < 32; number++) {
                int block = number;
                ends.add(each.submit(() -> {
                    rewrite(disk, block);
                    return null;
                }));
            }
            for (Future<?> end : ends) {
                end.get();
            }
            assertTrue(target.sessions.get() > 1, () -> "no loss was met; seed " + SEED);
        }
    }

    private static void rewrite(IscsiDevice disk, int block) throws Exception {
        Random random = new Random(SEED + block);
        ByteBuffer found = ByteBuffer.allocateDirect(512);
        byte[] data = new byte[512];
        byte[] seen = new byte[512];
        for (int round = 0; round < 50; round++) {
            random.nextBytes(data);
            disk.write(block, data);
            disk.read(block, found.clear());
            found.flip().get(seen);
            int at = round;
            assertArrayEquals(data, seen,
                    () -> "block " + block + ", round " + at + ", seed " + SEED);
        }
    }

    /** Goal: a platform thread does not wait with its command until the woken threads have run. */
    @Test
    void othersDoNotWaitForWokenThreads() throws Exception {
        Counting sending = new Counting();
        Waker waker = new Waker(sending);
        AtomicBoolean enough = new AtomicBoolean();
        List<Thread> waiters = new ArrayList<>();
        // One more than can run at once: the waker does not run again before.
        for (int number = 0; number <= Runtime.getRuntime().availableProcessors(); number++) {
            waiters.add(Thread.startVirtualThread(() -> {
                LockSupport.park();
                while (!enough.get()) {
                    Thread.onSpinWait();
                }
            }));
        }
        try {
            waker.wake(waiters, 0);
            while (!waker.takeOver()) {
                Thread.onSpinWait();
            }
            assertTrue(sending.held.get());
            assertFalse(waker.takeOver(), "it is taken over once");
        } finally {
            enough.set(true);
            waker.close();
        }
        for (Thread waiter : waiters) {
            waiter.join();
        }
        assertEquals(0, sending.sent.get(), "only the thread that took the sender over sends");
    }
}

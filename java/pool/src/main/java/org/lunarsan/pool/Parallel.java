package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.lunarsan.device.DeviceException;

/** Does the same on several members at once. No state; for any thread. */
final class Parallel {
    private Parallel() {}

    /** What is done on one member. */
    interface Work<T> {
        void run(T member) throws DeviceException;
    }

    /** A member that failed, and with what. */
    record Failed<T>(T member, DeviceException failure) {}

    /**
     * Does it on all and waits for all; the caller's thread does the last. An interrupt is kept
     * for the caller.
     *
     * @return those that failed
     */
    static <T> List<Failed<T>> run(List<T> members, Work<T> work) {
        List<Failed<T>> failed = new ArrayList<>();
        if (members.isEmpty()) {
            return failed;
        }
        CountDownLatch others = new CountDownLatch(members.size() - 1);
        RuntimeException[] defect = new RuntimeException[1];
        for (T member : members.subList(0, members.size() - 1)) {
            Thread.ofVirtual().name("pool member").start(() -> {
                try {
                    attempt(member, work, failed, defect);
                } finally {
                    others.countDown();
                }
            });
        }
        attempt(members.getLast(), work, failed, defect);
        await(others);
        if (defect[0] != null) {
            throw defect[0];
        }
        return failed;
    }

    private static <T> void attempt(
            T member, Work<T> work, List<Failed<T>> failed, RuntimeException[] defect) {
        try {
            work.run(member);
        } catch (DeviceException failure) {
            synchronized (failed) {
                failed.add(new Failed<>(member, failure));
            }
        } catch (RuntimeException thrown) {
            synchronized (failed) {
                defect[0] = thrown;
            }
        }
    }

    private static void await(CountDownLatch latch) {
        boolean interrupted = false;
        while (true) {
            try {
                latch.await();
                break;
            } catch (InterruptedException later) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}

package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

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
     * for the caller. Whatever is thrown is the failure of its member, also a lack of memory: the
     * others may have done it, so the members are not the same any more.
     *
     * @return those that failed
     */
    static <T> List<Failed<T>> run(Operation operation, List<T> members, Work<T> work) {
        List<Failed<T>> failed = new ArrayList<>();
        if (members.isEmpty()) {
            return failed;
        }
        CountDownLatch others = new CountDownLatch(members.size() - 1);
        for (T member : members.subList(0, members.size() - 1)) {
            start(() -> {
                try {
                    attempt(operation, member, work, failed);
                } finally {
                    others.countDown();
                }
            });
        }
        attempt(operation, members.getLast(), work, failed);
        await(others);
        return failed;
    }

    private static void start(Runnable task) {
        Thread thread = Thread.ofVirtual().name("pool member").unstarted(task);
        try {
            thread.start();
        } catch (OutOfMemoryError noThread) {
            task.run();
        }
    }

    private static <T> void attempt(
            Operation operation, T member, Work<T> work, List<Failed<T>> failed) {
        try {
            work.run(member);
        } catch (Throwable thrown) {
            synchronized (failed) {
                failed.add(new Failed<>(member, failure(member, operation, thrown)));
            }
        }
    }

    /** What was thrown, as the failure of a member. */
    static DeviceException failure(Object member, Operation operation, Throwable thrown) {
        return thrown instanceof DeviceException known
                ? known
                : new DeviceException(
                        member.toString(), operation, "an unexpected " + thrown, thrown);
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

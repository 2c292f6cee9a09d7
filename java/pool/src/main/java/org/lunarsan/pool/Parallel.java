package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/** Does the same on several members at once. No state; for any thread. */
final class Parallel {
    private Parallel() {}

    /** What is done on one member. */
    interface Work<T> {
        void run(T member) throws DeviceException;

        /** Begins it without waiting for it; null: it has to be run. */
        default CompletableFuture<Void> begin(T member) throws DeviceException {
            return null;
        }
    }

    /** A member that failed, and with what. */
    record Failed<T>(T member, DeviceException failure) {}

    /**
     * Does it on all and waits for all; what has to be run is run in threads, the last in the
     * caller's. An interrupt is kept for the caller. Whatever is thrown is the failure of its
     * member, also a lack of memory: the others may have done it, so the members are not the same
     * any more.
     *
     * @return those that failed
     */
    static <T> List<Failed<T>> run(Operation operation, List<T> members, Work<T> work) {
        Round<T> round = new Round<>(operation, work, members.size());
        T last = null;
        for (T member : members) {
            if (!round.begin(member)) {
                if (last != null) {
                    round.start(last);
                }
                last = member;
            }
        }
        if (last != null) {
            round.run(last);
        }
        await(round.open, Long.MAX_VALUE);
        return round.failed;
    }

    /**
     * As {@link #run}, all in threads, and waits no longer than some time. Those that have not
     * ended then have failed; what they do goes on.
     *
     * @param members each a different one
     */
    static <T> List<Failed<T>> runWithin(
            Duration limit, Operation operation, List<T> members, Work<T> work) {
        Set<T> done = ConcurrentHashMap.newKeySet();
        Round<T> round = new Round<>(operation, member -> {
            work.run(member);
            done.add(member);
        }, members.size());
        members.forEach(round::start);
        await(round.open, limit.toNanos());
        String what = "it did not answer within " + limit.toMillis() + " ms";
        synchronized (round.failed) {
            List<Failed<T>> failed = new ArrayList<>(round.failed);
            for (T member : members) {
                boolean told = round.failed.stream().anyMatch(bad -> bad.member() == member);
                if (!told && !done.contains(member)) {
                    failed.add(new Failed<>(member, new DeviceException(
                            member.toString(), operation, what, null)));
                }
            }
            return failed;
        }
    }

    /** Some members that do the same. */
    private static final class Round<T> {
        final Operation operation;
        final Work<T> work;
        /** As many as have not ended. */
        final CountDownLatch open;
        final List<Failed<T>> failed = new ArrayList<>();

        Round(Operation operation, Work<T> work, int members) {
            this.operation = operation;
            this.work = work;
            open = new CountDownLatch(members);
        }

        /** False: it has to be run. */
        boolean begin(T member) {
            CompletableFuture<Void> begun;
            try {
                begun = work.begin(member);
            } catch (Throwable thrown) {
                fail(member, thrown);
                open.countDown();
                return true;
            }
            if (begun == null) {
                return false;
            }
            begun.whenComplete((done, thrown) -> {
                if (thrown != null) {
                    fail(member, thrown);
                }
                open.countDown();
            });
            return true;
        }

        void start(T member) {
            Thread thread = Thread.ofVirtual().name("pool member").unstarted(() -> run(member));
            try {
                thread.start();
            } catch (OutOfMemoryError noThread) {
                run(member);
            }
        }

        void run(T member) {
            try {
                work.run(member);
            } catch (Throwable thrown) {
                fail(member, thrown);
            } finally {
                open.countDown();
            }
        }

        private void fail(T member, Throwable thrown) {
            synchronized (failed) {
                failed.add(new Failed<>(member, failure(member, operation, thrown)));
            }
        }
    }

    /** What was thrown, as the failure of a member. */
    static DeviceException failure(Object member, Operation operation, Throwable thrown) {
        return switch (thrown) {
            case DeviceException known -> known;
            case CompletionException wrapped when wrapped.getCause() != null ->
                    failure(member, operation, wrapped.getCause());
            default -> new DeviceException(
                    member.toString(), operation, "an unexpected " + thrown, thrown);
        };
    }

    private static void await(CountDownLatch latch, long nanos) {
        boolean interrupted = false;
        long begin = System.nanoTime();
        while (true) {
            try {
                latch.await(nanos - (System.nanoTime() - begin), TimeUnit.NANOSECONDS);
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

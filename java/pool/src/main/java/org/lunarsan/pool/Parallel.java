package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/** Does the same on several members at once. No state; for any thread. */
final class Parallel {
    /** A limit that is none. */
    static final Duration WITHOUT_END = Duration.ofNanos(Long.MAX_VALUE);

    private Parallel() {}

    /** What is done on one member. */
    interface Work<T> {
        void run(T member) throws DeviceException;

        /** Begins it without waiting for it; null: it has to be run. */
        default CompletableFuture<Void> begin(T member) throws DeviceException {
            return null;
        }

        /** Some member was given up: what it does goes on, with all that it uses. */
        default void givenUp() {}
    }

    /** A member that others may be given up behind. */
    interface Busy {
        /** Whether it is one whose answer is enough. */
        boolean isEnough();

        /** A call is about to begin; to be run when it has ended. */
        Runnable enter();
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
        synchronized (round.missing) {
            return round.failed;
        }
    }

    /**
     * As {@link #run}, but waits for none longer than some time after another has done it. Those
     * that have not ended then have failed, by a {@link LateMemberException}; what they do goes on,
     * but nothing begins on them any more.
     *
     * @param members each a different one
     */
    static <T> List<Failed<T>> runBehind(
            Duration limit, Operation operation, List<T> members, Work<T> work) {
        if (members.size() < 2 || limit.equals(WITHOUT_END)) {
            return run(operation, members, work);
        }
        Round<T> round = new Round<>(operation, work, members.size());
        for (T member : members) {
            if (!round.begin(member)) {
                round.start(member);
            }
        }
        await(round.some, Long.MAX_VALUE);
        await(round.open, limit.toNanos());
        return round.giveUp(members, limit);
    }

    /**
     * As {@link #run}, all in threads, and waits no longer than some time. Those that have not
     * ended then have failed; what they do goes on, but nothing begins on them any more.
     *
     * @param members each a different one
     */
    static <T> List<Failed<T>> runWithin(
            Duration limit, Operation operation, List<T> members, Work<T> work) {
        if (limit.equals(WITHOUT_END)) {
            return run(operation, members, work);
        }
        Round<T> round = new Round<>(operation, work, members.size());
        members.forEach(round::start);
        await(round.open, limit.toNanos());
        return round.giveUp(members, limit);
    }

    /** Some members that do the same. */
    private static final class Round<T> {
        final Operation operation;
        final Work<T> work;
        /** As many as have not ended. */
        final CountDownLatch open;
        /** Open until one has done it, or all have ended. */
        final CountDownLatch some = new CountDownLatch(1);
        /** Those that have not ended; guarded by itself, as what follows. */
        final Set<T> missing = Collections.newSetFromMap(new IdentityHashMap<>());
        final List<Failed<T>> failed = new ArrayList<>();
        boolean over;

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
                ended(member, thrown);
                return true;
            }
            if (begun == null) {
                return false;
            }
            begins(member);
            begun.whenComplete((done, thrown) -> ended(member, thrown));
            return true;
        }

        void start(T member) {
            begins(member);
            Thread thread = Thread.ofVirtual().name("pool member").unstarted(() -> run(member));
            try {
                thread.start();
            } catch (OutOfMemoryError noThread) {
                run(member);
            }
        }

        private void begins(T member) {
            synchronized (missing) {
                missing.add(member);
            }
        }

        /** Does it, unless it was given up; whoever waits for calls to end waits for this one. */
        void run(T member) {
            // Closing waits for the calls itself.
            Runnable leave = operation != Operation.CLOSE && member instanceof Busy busy
                    ? busy.enter()
                    : () -> { };
            Throwable failure = null;
            try {
                if (!isOver()) {
                    work.run(member);
                }
            } catch (Throwable thrown) {
                failure = thrown;
            } finally {
                leave.run();
                ended(member, failure);
            }
        }

        private boolean isOver() {
            synchronized (missing) {
                return over;
            }
        }

        private void ended(T member, Throwable thrown) {
            synchronized (missing) {
                missing.remove(member);
                if (thrown != null && !over) {
                    failed.add(new Failed<>(member, failure(member, operation, thrown)));
                }
                open.countDown();
                boolean enough = thrown == null && !(member instanceof Busy one && !one.isEnough());
                if (enough || open.getCount() == 0) {
                    some.countDown();
                }
            }
        }

        /** Those that failed, and those that have not ended. */
        List<Failed<T>> giveUp(List<T> members, Duration limit) {
            synchronized (missing) {
                over = true;
                for (T member : members) {
                    if (missing.contains(member)) {
                        failed.add(new Failed<>(member, new LateMemberException(
                                member.toString(), operation, limit.toMillis())));
                    }
                }
                return failed;
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

    static void await(CountDownLatch latch, long nanos) {
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

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

/** Does the same work on several members at once. Stateless and thread-safe. */
final class Parallel {
    /** A limit that is never reached. */
    static final Duration WITHOUT_END = Duration.ofNanos(Long.MAX_VALUE);

    private Parallel() {}

    /** The work on one member. */
    interface Work<T> {
        void run(T member) throws DeviceException;

        /** Begins the work without waiting for it; null: it has to be run. */
        default CompletableFuture<Void> begin(T member) throws DeviceException {
            return null;
        }

        /**
         * Called when the work of some member is detached: it continues, with all resources that it
         * uses.
         */
        default void detached() {}
    }

    /** A member that allows the work of others to be detached behind it. */
    interface Busy {
        /** True if the success of this member suffices to bound the wait for others. */
        boolean isEnough();

        /** Called when a call is about to begin; run the result when it has ended. */
        Runnable enter(Operation operation);
    }

    /** A member that failed, and its failure. */
    record Failed<T>(T member, DeviceException failure) {}

    /**
     * Does work on all members and waits for all. Blocking work runs in threads, the last in the
     * caller's. An interrupt is kept for the caller. Anything thrown is the failure of its member,
     * also a lack of memory: the others may have done the work, so the members differ.
     *
     * @return the members that failed
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
     * Does work as {@link #run}, but waits for each no longer than {@code limit} after another has
     * succeeded. Members that have not ended then fail with a {@link LateMemberException}; their
     * work continues, but no further work begins on them.
     *
     * @param members all different
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
        return round.detachRest(members, limit);
    }

    /**
     * Does work as {@link #run}, all in threads, and waits no longer than {@code limit}. Members
     * that have not ended then have failed; their work continues, but no further work begins on
     * them.
     *
     * @param members all different
     */
    static <T> List<Failed<T>> runWithin(
            Duration limit, Operation operation, List<T> members, Work<T> work) {
        if (limit.equals(WITHOUT_END)) {
            return run(operation, members, work);
        }
        Round<T> round = new Round<>(operation, work, members.size());
        members.forEach(round::start);
        await(round.open, limit.toNanos());
        return round.detachRest(members, limit);
    }

    /** One execution of the work on some members. */
    private static final class Round<T> {
        final Operation operation;
        final Work<T> work;
        /** Counts the members that have not ended. */
        final CountDownLatch open;
        /** Open until one has succeeded, or all have ended. */
        final CountDownLatch some = new CountDownLatch(1);
        /** The members that have not ended; guarded by itself, like all below. */
        final Set<T> missing = Collections.newSetFromMap(new IdentityHashMap<>());
        final List<Failed<T>> failed = new ArrayList<>();
        boolean over;

        Round(Operation operation, Work<T> work, int members) {
            this.operation = operation;
            this.work = work;
            open = new CountDownLatch(members);
        }

        /** Begins the work. False: it has to be run. */
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
            } catch (OutOfMemoryError exception) {
                run(member);
            }
        }

        private void begins(T member) {
            synchronized (missing) {
                missing.add(member);
            }
        }

        /** Does the work, unless it was detached; counts it as a pending call of the member. */
        void run(T member) {
            // Closing waits for the calls itself.
            Runnable leave = operation != Operation.CLOSE && member instanceof Busy busy
                    ? busy.enter(operation)
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

        /** Returns the members that failed, and those that have not ended. */
        List<Failed<T>> detachRest(List<T> members, Duration limit) {
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

    /** Converts a throwable to the failure of a member. */
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
            } catch (InterruptedException exception) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}

package org.lunarsan.initiator;

import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.Status;

/**
 * Sends one command as often as it takes, in as many sessions as it takes, as long as its patience
 * lasts. Before anything is sent in a new session, the unit is asked whether it is the one that was
 * opened. All that a disk is asked for can be done twice, and the tasks of a lost session have
 * ended when the target answers the next login (RFC 7143 §6.3.5), so nothing goes back.
 *
 * <p>Threads: for one thread, which waits.
 */
final class Patient {
    /** How often a unit is asked who it is because it told of another change meanwhile. */
    private static final int CHECKS_MAX = 16;
    /** Between two looks at a unit that is not ready yet. */
    private static final long READY_PAUSE_NANOS = 100_000_000L;
    /** Before a command is sent again that a session which goes on did not take. */
    private static final long REFUSED_PAUSE_NANOS = 50_000_000L;
    /** How long a write waits for one in doubt, besides the time there is for a lost session. */
    private static final long DOUBT_NANOS = 45_000_000_000L;
    /** How often it looks after the session meanwhile. */
    private static final long DOUBT_LOOK_NANOS = 1_000_000_000L;

    private final Disk disk;
    private final Keeper keeper;
    private final Patience patience;
    private final Outcome outcome = new Outcome();
    private int checks;
    /** After so many resets the command was sent last. */
    private long after;
    /** The session in which it was sent last. */
    private Session sentIn;
    /** Its number among writes that were lost, once it was. */
    private long own = Doubts.NEW;

    Patient(Disk disk) {
        this.disk = disk;
        keeper = disk.keeper();
        patience = new Patience(keeper.route().options().recoveryTime);
    }

    /**
     * Sends it.
     *
     * @param met a task that came back with what came of a first try; null: there was none
     * @param sentAfter after how many resets that was sent
     * @return after how many resets the command was sent that was answered
     */
    long send(Order order, Task met, long sentAfter) throws Failure {
        after = sentAfter;
        try {
            Task task = met;
            while (task == null || judge(order, task) != Outcome.Verdict.GOOD) {
                task = sendOnce(order);
            }
            return after;
        } finally {
            if (own != Doubts.NEW) {
                disk.doubts().replayed(own);
            }
        }
    }

    /** The session in which it was answered, if it was sent here. */
    Session answeredIn() {
        return sentIn;
    }

    /** Waits for what has to be waited for, and for the answer; null: look again. */
    private Task sendOnce(Order order) throws Failure {
        Session session = ready();
        checks = 0;
        if (order.changes() && isInDoubt(order)) {
            awaitDoubts(order);
            return null;
        }
        Task task = session.take(order.bytes());
        if (task == null) {
            lost(session.why().notSent(), session);
            return null;
        }
        order.fill(task, disk.lun());
        // Only now: looking at the unit may have found that there was one.
        after = disk.attentions().resets();
        sentIn = session;
        task.execute();
        return task;
    }

    /** Looks at what came of it; the task is given back. */
    private Outcome.Verdict judge(Order order, Task task) throws Failure {
        Session session = task.home.session();
        try {
            if (task.broken() != null) {
                throw unusable(task.broken());
            }
            Outcome.Verdict verdict = outcome.judge(task);
            if (verdict == Outcome.Verdict.GOOD && !task.isGood()) {
                throw incomplete(order, task);
            }
            return verdict;
        } catch (Failure failure) {
            noteDoubt(order, task, session);
            if (!failure.isLost()) {
                throw failure;
            }
            lost(failure, session);
            return Outcome.Verdict.AGAIN;
        } finally {
            order.release();
            task.home.tasks().give(task);
        }
    }

    /** The caller's mistake, and of this command alone. */
    private static Failure unusable(Throwable why) {
        return Failure.of(Kind.REFUSED, "the buffer cannot be used any more: " + why, why)
                .hint("a buffer of an arena has to stay open until the call or its future ends");
    }

    private static Failure incomplete(Order order, Task task) {
        String moved = order.out()
                ? "the command was answered GOOD with a residual of " + task.residualBytes()
                        + " bytes of " + order.bytes()
                : "READ was answered GOOD with " + task.dataInBytes() + " bytes of "
                        + order.bytes();
        return Failure.of(Kind.PROTOCOL, moved);
    }

    /**
     * A write that was sent and not answered may be executed until the session is replaced; or it
     * ended with a logout that the target answered (RFC 7143 §11.14), executed or not.
     */
    private void noteDoubt(Order order, Task task, Session session) {
        if (!order.changes() || task.failure() == null) {
            return;
        }
        var kind = task.failure().kind();
        boolean lost = kind == org.lunarsan.iscsi.connection.Failure.Kind.LOST;
        if (lost) {
            disk.doubts().hold(session.number(), order.lba(), order.blocks());
        }
        if (lost || kind == org.lunarsan.iscsi.connection.Failure.Kind.LOGGED_OUT) {
            own = numberOf(order);
            own = own != Doubts.NEW ? own : disk.doubts().replay(order.lba(), order.blocks());
        }
    }

    /** A session was lost, or takes nothing for now. Throws when there is no time left. */
    private void lost(Failure failure, Session session) throws Failure {
        patience.lost(failure, System.nanoTime());
        if (!session.isOver()) {
            Waits.pause(REFUSED_PAUSE_NANOS);
        }
        outcome.reset();
    }

    /**
     * A session in which the unit was found to be the one that was opened. Whoever waits asks for
     * itself: a few dozen questions after a restart cost less than a lock.
     */
    private Session ready() throws Failure {
        while (true) {
            Session session = keeper.await(patience);
            if (disk.verdict(session).isPresent()) {
                return session;
            }
            checks++;
            if (checks > CHECKS_MAX) {
                throw Failure.of(Kind.PROTOCOL, "the unit tells of changes without end");
            }
            try {
                disk.examine(session);
            } catch (Failure failure) {
                if (failure.isLost()) {
                    lost(failure, session);
                } else if (isPassing(failure) && patience.hasBegun()) {
                    pause(failure);
                } else {
                    throw failure;
                }
                checks = 0;
            }
        }
    }

    /** Waits a moment for a unit that comes up. */
    private void pause(Failure failure) throws Failure {
        if (patience.until() - System.nanoTime() <= 0) {
            throw patience.over("the unit is not ready: " + failure.getMessage());
        }
        Waits.pause(READY_PAUSE_NANOS);
    }

    /** A target that has just started may say so of a unit. */
    private static boolean isPassing(Failure failure) {
        Sense sense = failure.sense();
        if (sense != null) {
            return sense.key() == Sense.NOT_READY || sense.key() == Sense.UNIT_ATTENTION
                    || sense.code() == Sense.LOGICAL_UNIT_NOT_SUPPORTED;
        }
        return failure.status() == Status.BUSY || failure.status() == Status.TASK_SET_FULL;
    }

    private boolean isInDoubt(Order order) {
        return disk.doubts().concern(order.lba(), order.blocks(), numberOf(order));
    }

    /** What waits for it does so under one number, lest it wait for itself. */
    private long numberOf(Order order) {
        return own != Doubts.NEW ? own : order.givenUp();
    }

    /** A write waits for earlier ones that may still be executed. */
    private void awaitDoubts(Order order) throws Failure {
        String why = "a write to the same blocks may still be executed by the target";
        long whole = DOUBT_NANOS + keeper.route().options().recoveryTime.toNanos();
        long until = patience.hasBegun() ? patience.until() : System.nanoTime() + whole;
        while (!keeper.isClosed() && isInDoubt(order)) {
            // Nobody else may need the session whose end is waited for.
            keeper.keep(until);
            long left = until - System.nanoTime();
            if (left <= 0) {
                throw patience.hasBegun() ? patience.over(why + "; " + keeper.tried())
                        : Failure.of(Kind.NOT_SENT, why).hint("try again later");
            }
            disk.doubts().awaitChange(Math.min(left, DOUBT_LOOK_NANOS));
        }
    }
}

package org.lunarsan.initiator;

import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.Status;

/**
 * Sends one command repeatedly, in as many sessions as needed, until it succeeds, fails or its time
 * is up. In each new session the unit is examined before the command is sent, to be sure that it is
 * the one that was opened. All commands of a disk can be repeated, and the tasks of a lost session
 * have ended when the target answers the next login (RFC 7143 §6.3.5), so no older write can
 * overwrite a newer one.
 *
 * <p>Threads: for one thread, which waits.
 */
final class RepeatedCommand {
    /** Limit of repeated examinations of a unit that reports further changes meanwhile. */
    private static final int CHECKS_MAX = 16;
    /** Pause before a unit that is not ready is examined again. */
    private static final long READY_PAUSE_NANOS = 100_000_000L;
    /** Pause before a command is sent again that a live session did not accept. */
    private static final long REFUSED_PAUSE_NANOS = 50_000_000L;
    /** Time for which a write waits for an uncertain one, in addition to the recovery time. */
    private static final long UNCERTAIN_WRITE_NANOS = 45_000_000_000L;
    /** Interval at which the session is checked meanwhile. */
    private static final long REESTABLISH_NANOS = 1_000_000_000L;

    private final Disk disk;
    private final SessionSupervisor supervisor;
    private final RetryDeadline deadline;
    private final Outcome outcome = new Outcome();
    private int checks;
    /** Number of resets when the command was last sent. */
    private long after;
    /** The session in which the command was last sent. */
    private Session sentIn;
    /** Number of the write in {@link UncertainWrites}, once it was lost. */
    private long own = UncertainWrites.NEW;

    RepeatedCommand(Disk disk) {
        this.disk = disk;
        supervisor = disk.supervisor();
        deadline = new RetryDeadline(supervisor.route().options().recoveryTime);
    }

    /**
     * Sends the order.
     *
     * @param met the completed task of a first attempt; null if there was none
     * @param sentAfter number of resets when that attempt was sent
     * @return number of resets when the attempt that was answered was sent
     */
    long send(CommandRequest order, Task met, long sentAfter) throws Failure {
        after = sentAfter;
        try {
            Task task = met;
            while (task == null || interpretAndRelease(order, task) != Outcome.Verdict.GOOD) {
                task = sendOnce(order);
            }
            return after;
        } finally {
            if (own != UncertainWrites.NEW) {
                disk.uncertainWrites().replayed(own);
            }
        }
    }

    /** Returns the session in which the command was answered, if it was sent here. */
    Session answeredIn() {
        return sentIn;
    }

    /**
     * Waits for the session and earlier writes, then sends the order and waits for its end. Returns
     * null if the state has to be checked again.
     */
    private Task sendOnce(CommandRequest order) throws Failure {
        Session session = ready();
        checks = 0;
        if (order.changes() && isUncertain(order)) {
            awaitUncertainWrites(order);
            return null;
        }
        Task task = session.take(order.bytes());
        if (task == null) {
            lost(session.why().notSent(), session);
            return null;
        }
        order.fill(task, disk.lun());
        // Read the count only now: the examination of the unit may have found another reset.
        after = disk.attentions().resets();
        sentIn = session;
        task.execute();
        return task;
    }

    /** Interprets the end of a task and releases the task. */
    private Outcome.Verdict interpretAndRelease(CommandRequest order, Task task) throws Failure {
        Session session = task.home.session();
        try {
            if (task.broken() != null) {
                throw unusable(task.broken());
            }
            Outcome.Verdict verdict = outcome.interpret(task);
            if (verdict == Outcome.Verdict.GOOD && !task.isGood()) {
                throw incomplete(order, task);
            }
            return verdict;
        } catch (Failure failure) {
            recordUncertainWrite(order, task, session);
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

    /** Caller error that affects this command only. */
    private static Failure unusable(Throwable why) {
        return Failure.of(Kind.REFUSED, "the buffer cannot be used any more: " + why, why)
                .hint("a buffer of an arena has to stay open until the call or its future ends");
    }

    private static Failure incomplete(CommandRequest order, Task task) {
        String moved = order.out()
                ? "the command ended with status GOOD and a residual of " + task.residualBytes()
                        + " bytes of " + order.bytes()
                : "READ ended with status GOOD after only " + task.dataInBytes() + " bytes of "
                        + order.bytes();
        return Failure.of(Kind.PROTOCOL, moved);
    }

    /**
     * Records a write of unknown outcome. A write that was sent and not answered may be executed
     * until the session is replaced; one that ended with an answered logout (RFC 7143 §11.14) has
     * ended, but may have been executed or not.
     */
    private void recordUncertainWrite(CommandRequest order, Task task, Session session) {
        if (!order.changes() || task.failure() == null) {
            return;
        }
        var kind = task.failure().kind();
        boolean lost = kind == org.lunarsan.iscsi.connection.Failure.Kind.LOST;
        if (lost) {
            disk.uncertainWrites().hold(session.number(), order.lba(), order.blocks());
        }
        if (lost || kind == org.lunarsan.iscsi.connection.Failure.Kind.LOGGED_OUT) {
            own = numberOf(order);
            own = own != UncertainWrites.NEW
                    ? own : disk.uncertainWrites().replay(order.lba(), order.blocks());
        }
    }

    /**
     * Handles a session that was lost or accepts nothing for now. Throws when there is no time
     * left.
     */
    private void lost(Failure failure, Session session) throws Failure {
        deadline.lost(failure, System.nanoTime());
        if (!session.isOver()) {
            UninterruptedWaits.pause(REFUSED_PAUSE_NANOS);
        }
        outcome.reset();
    }

    /**
     * Returns a session in which the unit was found to be the one that was opened. Each waiting
     * thread examines the unit itself: a few dozen queries after a restart cost less than a lock.
     */
    private Session ready() throws Failure {
        while (true) {
            Session session = supervisor.await(deadline);
            if (disk.verdict(session).isPresent()) {
                return session;
            }
            checks++;
            if (checks > CHECKS_MAX) {
                throw Failure.of(Kind.PROTOCOL, "the unit reports changes endlessly");
            }
            try {
                disk.examine(session);
            } catch (Failure failure) {
                if (failure.isLost()) {
                    lost(failure, session);
                } else if (isTransient(failure) && deadline.hasBegun()) {
                    pause(failure);
                } else {
                    throw failure;
                }
                checks = 0;
            }
        }
    }

    /** Pauses for a unit that is not ready yet. */
    private void pause(Failure failure) throws Failure {
        if (deadline.until() - System.nanoTime() <= 0) {
            throw deadline.over("the unit is not ready: " + failure.getMessage());
        }
        UninterruptedWaits.pause(READY_PAUSE_NANOS);
    }

    /** True for answers that a target may give for a unit shortly after a restart. */
    private static boolean isTransient(Failure failure) {
        Sense sense = failure.sense();
        if (sense != null) {
            return sense.key() == Sense.NOT_READY || sense.key() == Sense.UNIT_ATTENTION
                    || sense.code() == Sense.LOGICAL_UNIT_NOT_SUPPORTED;
        }
        return failure.status() == Status.BUSY || failure.status() == Status.TASK_SET_FULL;
    }

    private boolean isUncertain(CommandRequest order) {
        return disk.uncertainWrites().overlaps(order.lba(), order.blocks(), numberOf(order));
    }

    /**
     * Returns the number under which all waiting for this order happens, so that it does not wait
     * for itself.
     */
    private long numberOf(CommandRequest order) {
        return own != UncertainWrites.NEW ? own : order.uncertainWriteNumber();
    }

    /** Waits until no earlier write to the same blocks may still be executed. */
    private void awaitUncertainWrites(CommandRequest order) throws Failure {
        String why = "a write to the same blocks may still be executed by the target";
        long whole = UNCERTAIN_WRITE_NANOS + supervisor.route().options().recoveryTime.toNanos();
        long until = deadline.hasBegun() ? deadline.until() : System.nanoTime() + whole;
        while (!supervisor.isClosed() && isUncertain(order)) {
            // No other caller may need the session whose end is waited for.
            supervisor.reestablish(until);
            long left = until - System.nanoTime();
            if (left <= 0) {
                throw deadline.hasBegun()
                        ? deadline.over(why + "; " + supervisor.describeAttempts())
                        : Failure.of(Kind.NOT_SENT, why).hint("try again later");
            }
            disk.uncertainWrites().awaitChange(Math.min(left, REESTABLISH_NANOS));
        }
    }
}

package org.lunarsan.initiator;

import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.pdu.RejectReason;
import org.lunarsan.iscsi.pdu.ServiceResponse;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.Status;

/**
 * Decides by the end of a command whether it succeeded, is sent again, or failed.
 *
 * <p>Threads: for one thread; one object for each command that did not end with GOOD at once.
 */
final class Outcome {
    /** Limit of attempts after unit attentions, damaged data or a busy target. */
    private static final int TRIES_MAX = 8;
    /** The first pause when a target is busy; doubled each time. */
    private static final long BUSY_PAUSE_NANOS = 10_000_000L;
    /** PROTOCOL SERVICE CRC ERROR: data arrived damaged and was not used. RFC 7143 §11.4.7.2. */
    private static final int CRC_ERROR = 0x4705;

    private int tries;

    /** Decision about a command. */
    enum Verdict {
        /** The command ended well. */
        GOOD,
        /** The command is to be sent again. */
        AGAIN
    }

    /**
     * Interprets the end of a task; pauses when the target is busy.
     *
     * @throws Failure when the task failed; if {@link Failure#isLost}, the command may be sent
     *         again once there is a session that accepts it
     */
    Verdict interpret(Task task) throws Failure {
        Session session = task.home.session();
        if (task.failure() != null) {
            throw unanswered(task, session);
        }
        if (task.response() != ServiceResponse.COMMAND_COMPLETED) {
            throw Failure.of(Kind.PROTOCOL, command(task) + " failed in the target");
        }
        tries++;
        int status = task.status();
        switch (status) {
            case Status.GOOD, Status.CONDITION_MET -> {
                return Verdict.GOOD;
            }
            case Status.CHECK_CONDITION -> {
                Sense sense = sense(task);
                if (isRetryable(sense) && tries < TRIES_MAX) {
                    return Verdict.AGAIN;
                }
                throw failed(task, sense);
            }
            case Status.BUSY, Status.TASK_SET_FULL -> {
                if (tries < TRIES_MAX) {
                    UninterruptedWaits.pause(BUSY_PAUSE_NANOS << tries);
                    return Verdict.AGAIN;
                }
            }
            default -> {
                // Handled below.
            }
        }
        String words = status == Status.RESERVATION_CONFLICT
                ? "reservation conflict: another initiator has reserved the unit"
                : Status.name(status);
        throw Failure.status(Kind.STATUS, command(task) + ": " + words, status, null);
    }

    /** Resets the count of attempts for a new session. */
    void reset() {
        tries = 0;
    }

    private static Failure unanswered(Task task, Session session) {
        String portal = session.portal();
        if (task.isExpired()) {
            String what = portal + " did not answer " + command(task) + " within "
                    + session.options().commandTime.toSeconds() + " s; it was aborted";
            return Failure.of(Kind.TIMED_OUT, what).hint("its disk may not respond; a longer"
                    + " command time waits for it longer");
        }
        var failure = task.failure();
        return switch (failure.kind()) {
            case REFUSED -> Failure.of(Kind.NOT_SENT, "not sent: " + failure.what());
            // The command has ended for good, and all commands of a disk may be repeated.
            case ABORTED -> Failure.of(Kind.NOT_SENT, portal + " has aborted " + command(task));
            case REJECTED -> rejected(task, portal);
            case LOGGED_OUT, LOST -> task.home.cause();
        };
    }

    private static Failure rejected(Task task, String portal) {
        String why = task.failure().what();
        // The command arrived damaged and was discarded (RFC 7143 §7.8): it had no effect.
        boolean damaged = why.endsWith(RejectReason.name(RejectReason.DATA_DIGEST_ERROR));
        return Failure.of(damaged ? Kind.NOT_SENT : Kind.REFUSED,
                portal + ", " + command(task) + ": " + why);
    }

    private static Failure failed(Task task, Sense sense) {
        String words = sense.equals(Sense.UNREADABLE) ? "check condition without sense"
                : sense.toString();
        return Failure.status(Kind.SENSE, command(task) + ": " + words, Status.CHECK_CONDITION,
                sense);
    }

    private static String command(Task task) {
        return "command %02xh".formatted(task.cdb()[0]);
    }

    static boolean isCheckCondition(Task task) {
        return task.failure() == null && task.status() == Status.CHECK_CONDITION
                && task.response() == ServiceResponse.COMMAND_COMPLETED;
    }

    /** Returns the sense data of a check condition; {@link Sense#UNREADABLE} if there are none. */
    static Sense sense(Task task) {
        return Sense.decode(task.sense());
    }

    /** True for a unit attention, a deferred error, or data that arrived damaged. */
    private static boolean isRetryable(Sense sense) {
        // SPC-4 §4.5.7: a command that ends with a deferred error was not executed.
        return sense.key() == Sense.UNIT_ATTENTION || sense.isDeferred()
                || sense.is(Sense.ABORTED_COMMAND, CRC_ERROR);
    }

}

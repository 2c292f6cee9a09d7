package org.lunarsan.initiator;

import java.util.concurrent.ConcurrentLinkedQueue;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.connection.Command;
import org.lunarsan.iscsi.connection.Management;
import org.lunarsan.iscsi.pdu.ManagementFunction;

/**
 * Aborts commands that were not answered in time. Ends the session when the target does not answer
 * an ABORT TASK within the abort time.
 *
 * <p>Threads: any; only the writer calls {@link #watch}.
 */
final class Aborts {
    private final Connection home;
    private final long abortNanos;
    private final ConcurrentLinkedQueue<Abort> underWay = new ConcurrentLinkedQueue<>();

    /** A pending ABORT TASK. */
    private record Abort(Management management, Task task, long use, long by) {
    }

    Aborts(Connection home, long abortNanos) {
        this.home = home;
        this.abortNanos = abortNanos;
    }

    /** Aborts every command that is overdue, and checks the pending aborts. */
    void watch(long now) {
        for (Tasks.Use late = home.tasks().overdue(now); late != null;
                late = home.tasks().overdue(now)) {
            Management management =
                    new Management(ManagementFunction.ABORT_TASK, (Command) late.task());
            Abort abort = new Abort(management, late.task(), late.use(), now + abortNanos);
            underWay.add(abort);
            if (!home.submit(management)) {
                underWay.remove(abort);
                if (!home.isClosed()) {
                    // The connection is leaving and accepts no requests, or has too many pending.
                    end("has not answered a command, which cannot be aborted");
                }
            }
        }
        Abort oldest = underWay.peek();
        if (oldest != null && oldest.by() - now <= 0) {
            underWay.clear();
            end("does not answer an ABORT TASK");
        }
    }

    /**
     * Handles the completion of an ABORT TASK. A task that the target has ended completes before
     * its abort. If the target does not know the task any more, or could not abort it, only the end
     * of the session ends the task.
     */
    void cameBack(Management management) {
        for (Abort abort : underWay) {
            if (abort.management() == management) {
                underWay.remove(abort);
                boolean stays = abort.task().isUnderWay(abort.use());
                if (management.failure() == null && stays) {
                    end("has not ended a command that was aborted");
                }
            }
        }
    }

    private void end(String what) {
        Session session = home.session();
        session.end(Failure.of(Kind.SESSION_LOST, session.portal() + " " + what));
    }
}

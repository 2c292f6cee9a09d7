package org.lunarsan.initiator;

import java.util.concurrent.ConcurrentLinkedQueue;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.connection.Command;
import org.lunarsan.iscsi.connection.Management;
import org.lunarsan.iscsi.pdu.ManagementFunction;

/**
 * What was not answered in time is aborted. A target that does not say within its time what became
 * of that loses the session.
 *
 * <p>Threads: any; {@link #watch} is the writer's.
 */
final class Aborts {
    private final Connection home;
    private final long abortNanos;
    private final ConcurrentLinkedQueue<Abort> underWay = new ConcurrentLinkedQueue<>();

    /** An ABORT TASK under way. */
    private record Abort(Management management, Task task, long use, long by) {
    }

    Aborts(Connection home, long abortNanos) {
        this.home = home;
        this.abortNanos = abortNanos;
    }

    /** Looks whether anything is overdue. */
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
                    // It leaves this connection, which takes nothing new, or too much is in hand.
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
     * An ABORT TASK is over. A task that the target has ended came back before; one that it does
     * not know any more, or could not abort, has no end but that of the session.
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

package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.session.Ending;
import org.lunarsan.iscsi.session.SessionMessage;

/**
 * Handles timers and messages of the session.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class TimerHandler {
    private final Core core;
    private final RequestSubmitter submitter;
    private final ControlPduHandler controlHandler;

    TimerHandler(Core core, RequestSubmitter submitter, ControlPduHandler controlHandler) {
        this.core = core;
        this.submitter = submitter;
        this.controlHandler = controlHandler;
    }

    /** Returns the time until something is due. */
    long nanosToWait(long now) {
        Timers timers = core.timers;
        if (core.phase == Core.Phase.CLOSED) {
            return Timers.NEVER;
        }
        long left = mayPing() ? timers.silenceLeft(now, core.limits) : Timers.NEVER;
        if (timers.logsOut) {
            left = Math.min(left, Timers.left(now, timers.logoutBy));
        }
        return timers.drains ? Math.min(left, Timers.left(now, timers.drainBy)) : left;
    }

    /** True also while commands are waited for before a logout, but not after it. */
    private boolean mayPing() {
        return core.phase == Core.Phase.FULL_FEATURE
                || core.phase == Core.Phase.DRAINING && core.timers.drains;
    }

    /** Processes the messages of the session. */
    void takeMessages() {
        SessionMessage message = core.session.takeMessage(core.cid);
        while (message != null) {
            switch (message) {
                case SessionMessage.TasksEnded ended -> controlHandler.endTasks(ended);
                case SessionMessage.LoggingOut loggingOut -> onSessionLogout();
                case SessionMessage.Close close -> onSessionEnd();
            }
            message = core.session.takeMessage(core.cid);
        }
    }

    private void onSessionLogout() {
        if (core.isOpen()) {
            core.phase = Core.Phase.DRAINING;
            core.endData();
            core.withdrawAll("the session is being logged out");
        }
    }

    /**
     * The answer to a logout is worth a short wait: the target has closed the other connections.
     */
    private void onSessionEnd() {
        if (core.loggingOut == null) {
            core.shut(new CloseReason.Dropped(), Ending.LOST, Failure.LOST);
        }
    }

    /** Handles expired deadlines. */
    void onDeadline(long now) {
        Timers timers = core.timers;
        if (core.phase == Core.Phase.CLOSED) {
            return;
        }
        if (timers.logsOut && Timers.left(now, timers.logoutBy) == 0) {
            timeOut("a logout");
            return;
        }
        if (timers.drains && Timers.left(now, timers.drainBy) == 0) {
            submitter.logOutDrained();
        }
        boolean silent = mayPing() && timers.silenceLeft(now, core.limits) == 0;
        if (silent && timers.isPinged) {
            timeOut("a ping");
        } else if (silent) {
            // Until the ping is sent, the time of the request counts.
            timers.isPinged = true;
            timers.pinged = now;
            core.ask(Ping.keepAlive());
        }
    }

    private void timeOut(String what) {
        core.shut(new CloseReason.TimedOut(what), Ending.LOST, Failure.LOST);
    }
}

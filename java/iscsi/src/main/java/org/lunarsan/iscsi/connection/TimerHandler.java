package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.session.ConnectionEnding;
import org.lunarsan.iscsi.session.SessionMessage;

/**
 * Handles timers and messages of the session.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class TimerHandler {
    private final ConnectionState state;
    private final RequestSubmitter submitter;
    private final ControlPduHandler controlHandler;

    TimerHandler(
            ConnectionState state,
            RequestSubmitter submitter,
            ControlPduHandler controlHandler) {
        this.state = state;
        this.submitter = submitter;
        this.controlHandler = controlHandler;
    }

    /** Returns the time until something is due. */
    long nanosToWait(long now) {
        Timers timers = state.timers;
        if (state.phase == ConnectionState.Phase.CLOSED) {
            return Timers.NEVER;
        }
        long left = mayPing() ? timers.silenceLeft(now, state.limits) : Timers.NEVER;
        if (timers.logsOut) {
            left = Math.min(left, Timers.left(now, timers.logoutBy));
        }
        return timers.drains ? Math.min(left, Timers.left(now, timers.drainBy)) : left;
    }

    /** True also while commands are waited for before a logout, but not after it. */
    private boolean mayPing() {
        return state.phase == ConnectionState.Phase.FULL_FEATURE
                || state.phase == ConnectionState.Phase.DRAINING && state.timers.drains;
    }

    /** Processes the messages of the session. */
    void takeMessages() {
        SessionMessage message = state.session.takeMessage(state.cid);
        while (message != null) {
            switch (message) {
                case SessionMessage.TasksEnded ended -> controlHandler.endTasks(ended);
                case SessionMessage.LoggingOut loggingOut -> onSessionLogout();
                case SessionMessage.Close close -> onSessionEnd();
            }
            message = state.session.takeMessage(state.cid);
        }
    }

    private void onSessionLogout() {
        if (state.isOpen()) {
            state.phase = ConnectionState.Phase.DRAINING;
            state.endData();
            state.withdrawAll("the session is being logged out");
        }
    }

    /**
     * The answer to a logout is worth a short wait: the target has closed the other connections.
     */
    private void onSessionEnd() {
        if (state.loggingOut == null) {
            state.shut(new CloseReason.Dropped(), ConnectionEnding.LOST, Failure.LOST);
        }
    }

    /** Handles expired deadlines. */
    void onDeadline(long now) {
        Timers timers = state.timers;
        if (state.phase == ConnectionState.Phase.CLOSED) {
            return;
        }
        if (timers.logsOut && Timers.left(now, timers.logoutBy) == 0) {
            timeOut("a logout");
            return;
        }
        if (timers.drains && Timers.left(now, timers.drainBy) == 0) {
            submitter.logOutDrained();
        }
        boolean silent = mayPing() && timers.silenceLeft(now, state.limits) == 0;
        if (silent && timers.isPinged) {
            timeOut("a ping");
        } else if (silent) {
            // Until the ping is sent, the time of the request counts.
            timers.isPinged = true;
            timers.pinged = now;
            state.submitInternal(Ping.keepAlive());
        }
    }

    private void timeOut(String what) {
        state.shut(new CloseReason.TimedOut(what), ConnectionEnding.LOST, Failure.LOST);
    }
}

package org.lunarsan.iscsi.session;

import org.lunarsan.iscsi.wire.Lun;

/**
 * A message of a session to one of its connections.
 *
 * <p>Threads: immutable.
 */
public sealed interface SessionMessage {
    /**
     * A function on another connection ended several tasks. RFC 7143 §4.2.3.3.
     *
     * @param allUnits on all units, else on {@code lun} alone
     * @param lun the unit's field
     * @param before CmdSN of the function, which concerns older tasks
     */
    record TasksEnded(boolean allUnits, long lun, int before) implements SessionMessage {
        /**
         * True if the message concerns a unit.
         *
         * @param other its LUN field
         * @return whether it does
         */
        public boolean concerns(long other) {
            return allUnits || Lun.isSameUnit(lun, other);
        }
    }

    /** The session is being logged out on another connection: send no more requests. */
    record LoggingOut() implements SessionMessage {
    }

    /** The session ends: close the connection. */
    record Close() implements SessionMessage {
    }
}

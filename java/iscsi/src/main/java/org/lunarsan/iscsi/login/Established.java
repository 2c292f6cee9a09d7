package org.lunarsan.iscsi.login;

import java.util.Optional;
import java.util.OptionalInt;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.SessionParameters;

/**
 * Result of a login: full feature phase.
 *
 * <p>Threads: immutable.
 *
 * @param tsih the session's handle; 0 only in a discovery session of an old target, against RFC
 *        7143 §11.13.3
 * @param session negotiated for the session (meaningful on its leading connection)
 * @param connection negotiated for this connection
 * @param expStatSn the next StatSN that this connection expects
 * @param expCmdSn ExpCmdSN of the target: the begin of its command window
 * @param maxCmdSn MaxCmdSN of the target: the end of its command window
 * @param portalGroupTag TargetPortalGroupTag, if declared
 * @param targetAlias TargetAlias, if declared
 */
public record Established(int tsih, SessionParameters session, ConnectionParameters connection,
        int expStatSn, int expCmdSn, int maxCmdSn, OptionalInt portalGroupTag,
        Optional<String> targetAlias) {
}

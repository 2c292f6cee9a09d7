package org.lunarsan.iscsi.login;

import java.util.Optional;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.SessionType;

/**
 * Options of one login. ISID, TSIH and CmdSN come from
 * {@link org.lunarsan.iscsi.session.InitiatorSession#open}.
 *
 * <p>Threads: immutable, except for {@code entropy}, which is not copied.
 *
 * @param initiatorName InitiatorName
 * @param alias InitiatorAlias
 * @param targetName TargetName; needed for a normal session
 * @param sessionType discovery or normal
 * @param isid our part of the session identifier, six bytes
 * @param tsih 0 for a new session, else the session to join
 * @param cid connection ID
 * @param initiatorTaskTag of the login; any but the reserved one
 * @param cmdSn CmdSN the session starts at, or has reached
 * @param offer our proposals
 * @param chap our credentials; empty: the login starts in the operational stage
 * @param entropy {@link Challenge#ENTROPY_BYTES} fresh random bytes, for our own challenge
 */
public record LoginOptions(String initiatorName, Optional<String> alias,
        Optional<String> targetName, SessionType sessionType, long isid, int tsih, int cid,
        int initiatorTaskTag, int cmdSn, Offer offer, Optional<ChapAnswer> chap, byte[] entropy) {
    /**
     * Checks the length of the entropy.
     *
     * @throws IllegalArgumentException when it is not {@link Challenge#ENTROPY_BYTES}
     */
    public LoginOptions {
        if (entropy.length != Challenge.ENTROPY_BYTES) {
            throw new IllegalArgumentException("a login needs " + Challenge.ENTROPY_BYTES
                    + " random bytes, not " + entropy.length);
        }
    }

    /**
     * True if the login begins a session. A login that adds a connection, or replaces a lost one,
     * names the session by its TSIH. RFC 7143 §11.12.6.
     *
     * @return whether it is the leading login
     */
    public boolean isLeading() {
        return tsih == 0;
    }

    /** Describes the options without the random bytes, which will be our challenge. */
    @Override
    public String toString() {
        return "LoginOptions(%s to %s, isid %012x, tsih %d, cid %d)".formatted(initiatorName,
                targetName.orElse("discovery"), isid, tsih, cid);
    }
}

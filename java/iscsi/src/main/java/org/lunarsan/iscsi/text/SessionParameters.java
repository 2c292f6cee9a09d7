package org.lunarsan.iscsi.text;

/**
 * Parameters of a session after login. RFC 7143 §13; each is the key of that name.
 *
 * <p>Threads: immutable.
 *
 * @param sessionType SessionType
 * @param maxConnections MaxConnections
 * @param initialR2t InitialR2T
 * @param immediateData ImmediateData
 * @param maxBurstBytes MaxBurstLength
 * @param firstBurstBytes FirstBurstLength, never above MaxBurstLength
 * @param timeToWaitSeconds DefaultTime2Wait
 * @param timeToRetainSeconds DefaultTime2Retain
 * @param maxOutstandingR2t MaxOutstandingR2T
 * @param dataPduInOrder DataPDUInOrder
 * @param dataSequenceInOrder DataSequenceInOrder
 * @param errorRecoveryLevel ErrorRecoveryLevel
 * @param taskReporting TaskReporting
 * @param protocolLevel iSCSIProtocolLevel
 */
public record SessionParameters(SessionType sessionType, int maxConnections, boolean initialR2t,
        boolean immediateData, int maxBurstBytes, int firstBurstBytes, int timeToWaitSeconds,
        int timeToRetainSeconds, int maxOutstandingR2t, boolean dataPduInOrder,
        boolean dataSequenceInOrder, int errorRecoveryLevel, TaskReporting taskReporting,
        int protocolLevel) {
    /** The defaults of RFC 7143 §13. */
    public static final SessionParameters DEFAULT = new SessionParameters(SessionType.NORMAL, 1,
            true, true, 262_144, 65_536, 2, 20, 1, true, true, 0, TaskReporting.RFC3720, 1);
}

package org.lunarsan.iscsi.text;

import org.lunarsan.iscsi.framing.Digests;

/**
 * Parameters of one connection after login.
 *
 * <p>Threads: immutable.
 *
 * @param digests in both directions
 * @param sendDataSegmentBytesMax the peer's MaxRecvDataSegmentLength: the longest data segment that
 *        we may send
 * @param receiveDataSegmentBytesMax ours: the longest data segment that the peer may send
 */
public record ConnectionParameters(Digests digests, int sendDataSegmentBytesMax,
        int receiveDataSegmentBytesMax) {
    /** The defaults of RFC 7143 §13.1, §13.12. */
    public static final ConnectionParameters DEFAULT =
            new ConnectionParameters(Digests.NONE, 8192, 8192);
}

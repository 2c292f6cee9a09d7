package org.lunarsan.iscsi.login;

import org.lunarsan.iscsi.pdu.LoginRequest;

/**
 * What a login asks of the one who runs it.
 *
 * <p>Threads: immutable.
 */
public sealed interface LoginStep {
    /**
     * Send this Login Request, then hand the answer to {@link InitiatorLogin#receive}.
     *
     * @param header its DataSegmentLength is set
     * @param data the data segment; may hold a proof, so it is not for logs
     */
    record Send(LoginRequest header, byte[] data) implements LoginStep {
        @Override
        public String toString() {
            return "Send(" + header + ", " + data.length + " bytes)";
        }
    }

    /**
     * Logged in: digests hold from here on, in both directions.
     *
     * @param established what was negotiated
     */
    record Complete(Established established) implements LoginStep {
    }

    /**
     * It failed; close the connection.
     *
     * @param reason to be thrown to the one who asked
     */
    record Failed(LoginException reason) implements LoginStep {
    }
}

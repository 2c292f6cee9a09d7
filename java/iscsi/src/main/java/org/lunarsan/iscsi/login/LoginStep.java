package org.lunarsan.iscsi.login;

import org.lunarsan.iscsi.pdu.LoginRequest;

/**
 * A step of a login for its driver.
 *
 * <p>Threads: immutable.
 */
public sealed interface LoginStep {
    /**
     * Send this Login Request, then pass the answer to {@link InitiatorLogin#receive}.
     *
     * @param header its DataSegmentLength is set
     * @param data the data segment; may hold a CHAP response, so it must not be logged
     */
    record Send(LoginRequest header, byte[] data) implements LoginStep {
        @Override
        public String toString() {
            return "Send(" + header + ", " + data.length + " bytes)";
        }
    }

    /**
     * Logged in: digests apply from here, in both directions.
     *
     * @param established the negotiated parameters
     */
    record Complete(Established established) implements LoginStep {
    }

    /**
     * The login failed; close the connection.
     *
     * @param reason to be thrown to the caller
     */
    record Failed(LoginException reason) implements LoginStep {
    }
}

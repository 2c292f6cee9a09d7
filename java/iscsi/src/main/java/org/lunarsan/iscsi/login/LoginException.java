package org.lunarsan.iscsi.login;

import java.io.IOException;

/**
 * Why a login failed. Sealed: who gets one can tell all cases apart.
 *
 * <p>Threads: immutable.
 */
public abstract sealed class LoginException extends IOException
        permits LoginRefusedException, LoginViolationException, TargetErrorException,
        TargetMovedException {
    private static final long serialVersionUID = 1;

    /** Status-Class and Status-Detail. */
    private final int status;

    LoginException(int status, String message) {
        super(message);
        this.status = status;
    }

    /**
     * The status that the target answered with. RFC 7143 §11.13.5.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.LoginStatus}; 0 if it was not the target that
     *         refused
     */
    public final int status() {
        return status;
    }
}

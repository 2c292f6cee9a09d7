package org.lunarsan.iscsi.login;

import java.io.IOException;
import java.util.Optional;

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

    /** What failed and why. */
    private final String what;
    /** What to do, or null. */
    private final String advice;

    LoginException(int status, String what, String advice) {
        this(status, advice == null ? what : what + ": " + advice, what, advice);
    }

    LoginException(int status, String message, String what, String advice) {
        super(message);
        this.status = status;
        this.what = what;
        this.advice = advice;
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

    /**
     * What failed and why, without advice: for who says himself what was logged in to.
     *
     * @return a part of the message
     */
    public final String what() {
        return what;
    }

    /**
     * What to do. It knows the status alone: who knows more can advise better.
     *
     * @return an advice, if there is one
     */
    public final Optional<String> advice() {
        return Optional.ofNullable(advice);
    }
}

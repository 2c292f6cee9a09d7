package org.lunarsan.iscsi.login;

import java.io.IOException;
import java.util.Optional;

/**
 * Reason for a failed login. Sealed, so that callers can distinguish all cases.
 *
 * <p>Threads: immutable.
 */
public abstract sealed class LoginException extends IOException
        permits LoginRefusedException, LoginViolationException, TargetErrorException,
        TargetMovedException {
    private static final long serialVersionUID = 1;

    /** Status-Class and Status-Detail. */
    private final int status;

    /** The failure and its cause. */
    private final String what;
    /** The advice, or null. */
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
     * The status with which the target answered. RFC 7143 §11.13.5.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.LoginStatus}; 0 if the target did not refuse
     */
    public final int status() {
        return status;
    }

    /**
     * The failure and its cause, without advice: for callers that name the target themselves.
     *
     * @return a part of the message
     */
    public final String what() {
        return what;
    }

    /**
     * Advice, based on the status alone: a caller may be able to give better advice.
     *
     * @return the advice, if there is any
     */
    public final Optional<String> advice() {
        return Optional.ofNullable(advice);
    }
}

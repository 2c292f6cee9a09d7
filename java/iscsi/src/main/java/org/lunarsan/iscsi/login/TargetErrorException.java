package org.lunarsan.iscsi.login;

/**
 * Thrown when the target cannot serve now: status class 3, "target error". RFC 7143 §11.13.5. The
 * same login may be tried again later.
 *
 * <p>Threads: immutable.
 */
public final class TargetErrorException extends LoginException {
    private static final long serialVersionUID = 1;

    TargetErrorException(int status, String what, String advice) {
        super(status, what, advice);
    }
}

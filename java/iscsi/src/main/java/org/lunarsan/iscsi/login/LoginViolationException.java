package org.lunarsan.iscsi.login;

/**
 * Thrown when the target broke a rule of the login, or did not prove itself. Another login will
 * most likely end in the same way.
 *
 * <p>Threads: immutable.
 */
public final class LoginViolationException extends LoginException {
    private static final long serialVersionUID = 1;

    LoginViolationException(int status, String message, String what) {
        super(status, message, what, null);
    }
}

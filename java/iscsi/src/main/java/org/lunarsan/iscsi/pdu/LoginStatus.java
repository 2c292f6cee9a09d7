package org.lunarsan.iscsi.pdu;

/**
 * Status-Class and Status-Detail as one number. RFC 7143 §11.13.5.
 *
 * <p>Any value decodes; the state machine interprets its meaning.
 *
 * <p>Threads: no state.
 */
public final class LoginStatus {
    /** Success. */
    public static final int SUCCESS = 0x0000;

    /** Target moved temporarily. */
    public static final int TARGET_MOVED_TEMPORARILY = 0x0101;

    /** Target moved permanently. */
    public static final int TARGET_MOVED_PERMANENTLY = 0x0102;

    /** Initiator error. */
    public static final int INITIATOR_ERROR = 0x0200;

    /** Authentication failure. */
    public static final int AUTHENTICATION_FAILURE = 0x0201;

    /** Authorization failure. */
    public static final int AUTHORIZATION_FAILURE = 0x0202;

    /** Not found. */
    public static final int NOT_FOUND = 0x0203;

    /** Target removed. */
    public static final int TARGET_REMOVED = 0x0204;

    /** Unsupported version. */
    public static final int UNSUPPORTED_VERSION = 0x0205;

    /** Too many connections. */
    public static final int TOO_MANY_CONNECTIONS = 0x0206;

    /** Missing parameter. */
    public static final int MISSING_PARAMETER = 0x0207;

    /** Cant include in session. */
    public static final int CANT_INCLUDE_IN_SESSION = 0x0208;

    /** Session type not supported. */
    public static final int SESSION_TYPE_NOT_SUPPORTED = 0x0209;

    /** Session does not exist. */
    public static final int SESSION_DOES_NOT_EXIST = 0x020a;

    /** Invalid during login. */
    public static final int INVALID_DURING_LOGIN = 0x020b;

    /** Target error. */
    public static final int TARGET_ERROR = 0x0300;

    /** Service unavailable. */
    public static final int SERVICE_UNAVAILABLE = 0x0301;

    /** Out of resources. */
    public static final int OUT_OF_RESOURCES = 0x0302;

    private LoginStatus() {
    }

    /**
     * Returns the name of a number, for messages.
     *
     * @param value the number
     * @return its name, or the number in hex
     */
    public static String name(int value) {
        return switch (value) {
            case SUCCESS -> "SUCCESS";
            case TARGET_MOVED_TEMPORARILY -> "TARGET_MOVED_TEMPORARILY";
            case TARGET_MOVED_PERMANENTLY -> "TARGET_MOVED_PERMANENTLY";
            case INITIATOR_ERROR -> "INITIATOR_ERROR";
            case AUTHENTICATION_FAILURE -> "AUTHENTICATION_FAILURE";
            case AUTHORIZATION_FAILURE -> "AUTHORIZATION_FAILURE";
            case NOT_FOUND -> "NOT_FOUND";
            case TARGET_REMOVED -> "TARGET_REMOVED";
            case UNSUPPORTED_VERSION -> "UNSUPPORTED_VERSION";
            case TOO_MANY_CONNECTIONS -> "TOO_MANY_CONNECTIONS";
            case MISSING_PARAMETER -> "MISSING_PARAMETER";
            case CANT_INCLUDE_IN_SESSION -> "CANT_INCLUDE_IN_SESSION";
            case SESSION_TYPE_NOT_SUPPORTED -> "SESSION_TYPE_NOT_SUPPORTED";
            case SESSION_DOES_NOT_EXIST -> "SESSION_DOES_NOT_EXIST";
            case INVALID_DURING_LOGIN -> "INVALID_DURING_LOGIN";
            case TARGET_ERROR -> "TARGET_ERROR";
            case SERVICE_UNAVAILABLE -> "SERVICE_UNAVAILABLE";
            case OUT_OF_RESOURCES -> "OUT_OF_RESOURCES";
            default -> "LoginStatus(0x%x)".formatted(value);
        };
    }

    /**
     * The Status-Class alone.
     *
     * @param status the status
     * @return 0 success, 1 redirection, 2 initiator error, 3 target error
     */
    public static int statusClass(int status) {
        return status >>> 8;
    }
}

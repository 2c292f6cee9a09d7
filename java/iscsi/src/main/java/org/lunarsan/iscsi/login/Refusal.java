package org.lunarsan.iscsi.login;

import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Pairs;
import org.lunarsan.iscsi.text.TextViolation;

/**
 * Converts a status other than success to an exception. RFC 7143 §11.13.5.
 *
 * <p>Threads: no state.
 */
final class Refusal {
    private static final int CLASS_REDIRECTION = 1;
    private static final int CLASS_INITIATOR_ERROR = 2;
    private static final int CLASS_TARGET_ERROR = 3;

    private Refusal() {
    }

    /** Returns the exception for a status; {@code text} is the data segment of the response. */
    static LoginException of(LoginOptions options, int status, byte[] text,
            ChapAlgorithm chapAlgorithm) {
        String words = "%s responded with status %s (%04x)".formatted(
                options.targetName().orElse("the portal"), LoginStatus.name(status), status);
        return switch (LoginStatus.statusClass(status)) {
            case CLASS_REDIRECTION -> moved(status, text, words);
            case CLASS_INITIATOR_ERROR -> new LoginRefusedException(status, chapAlgorithm,
                    words, advice(status));
            case CLASS_TARGET_ERROR -> new TargetErrorException(status, words,
                    "try again later");
            default -> violated(status, words + ", which RFC 7143 reserves");
        };
    }

    private static LoginException moved(int status, byte[] text, String words) {
        boolean known = status == LoginStatus.TARGET_MOVED_TEMPORARILY
                || status == LoginStatus.TARGET_MOVED_PERMANENTLY;
        String address = known ? address(text) : null;
        if (address == null) {
            return violated(status, words + " without the address of the new portal");
        }
        return new TargetMovedException(status, address, words);
    }

    private static LoginException violated(int status, String what) {
        return new LoginViolationException(status, what, what);
    }

    private static String address(byte[] text) {
        try {
            return Pairs.parse(text).stream().filter(pair -> pair.key() == Key.TARGET_ADDRESS)
                    .map(Pair::value).findFirst().orElse(null);
        } catch (TextViolation unreadable) {
            return null;
        }
    }

    private static String advice(int status) {
        return switch (status) {
            case LoginStatus.AUTHENTICATION_FAILURE -> "check the CHAP name and secret";
            case LoginStatus.AUTHORIZATION_FAILURE -> "permit this initiator name at the target";
            case LoginStatus.NOT_FOUND, LoginStatus.TARGET_REMOVED -> "check the target's name";
            case LoginStatus.SESSION_DOES_NOT_EXIST -> "the session is over; open a new one";
            case LoginStatus.TOO_MANY_CONNECTIONS -> "request fewer connections";
            default -> "the same login will be refused again";
        };
    }
}

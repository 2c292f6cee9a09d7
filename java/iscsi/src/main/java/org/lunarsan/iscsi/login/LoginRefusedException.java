package org.lunarsan.iscsi.login;

import java.util.Optional;

/**
 * The target refuses this initiator: status class 2, "initiator error". RFC 7143 §11.13.5. The same
 * login will be refused again.
 *
 * <p>Threads: immutable.
 */
public final class LoginRefusedException extends LoginException {
    private static final long serialVersionUID = 1;

    /** The hash of the proof that was refused, or null. */
    private final ChapAlgorithm provenBy;

    LoginRefusedException(int status, ChapAlgorithm provenBy, String what,
            String advice) {
        super(status, what, advice);
        this.provenBy = provenBy;
    }

    /**
     * Whether the refusal is the answer to our proof. A target may know the name and secret with
     * another hash only.
     *
     * @return the hash of the proof; empty if none was under way
     */
    public Optional<ChapAlgorithm> provenBy() {
        return Optional.ofNullable(provenBy);
    }
}

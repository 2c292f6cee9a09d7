package org.lunarsan.iscsi.login;

import java.util.Optional;

/**
 * Thrown when the target refuses this initiator: status class 2, "initiator error". RFC 7143
 * §11.13.5. The same login will be refused again.
 *
 * <p>Threads: immutable.
 */
public final class LoginRefusedException extends LoginException {
    private static final long serialVersionUID = 1;

    /** The hash of the refused CHAP response, or null. */
    private final ChapAlgorithm chapAlgorithm;

    LoginRefusedException(int status, ChapAlgorithm chapAlgorithm, String what,
            String advice) {
        super(status, what, advice);
        this.chapAlgorithm = chapAlgorithm;
    }

    /**
     * The hash of our CHAP response, if the refusal answers it. The target may know the name and
     * secret with another hash only.
     *
     * @return the hash; empty if no response was pending
     */
    public Optional<ChapAlgorithm> chapAlgorithm() {
        return Optional.ofNullable(chapAlgorithm);
    }
}

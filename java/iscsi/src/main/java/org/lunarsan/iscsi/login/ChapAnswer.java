package org.lunarsan.iscsi.login;

import java.util.List;
import java.util.Optional;

/**
 * Credentials of the initiator, and those required of the target. RFC 7143 §12.1.3.
 *
 * <p>Threads: immutable.
 *
 * @param algorithms CHAP_A, best first
 * @param credential our name and secret
 * @param expectTarget mutual CHAP: the login fails if the target does not prove this
 */
public record ChapAnswer(List<ChapAlgorithm> algorithms, Credential credential,
        Optional<Credential> expectTarget) {
    /**
     * Copies the list.
     */
    public ChapAnswer {
        algorithms = List.copyOf(algorithms);
    }
}

package org.lunarsan.iscsi.login;

import java.util.List;
import java.util.Optional;

/**
 * How the initiator proves itself, and whether the target must. RFC 7143 §12.1.3.
 *
 * <p>Threads: immutable.
 *
 * @param algorithms CHAP_A, best first
 * @param credential our name and secret
 * @param expectTarget mutual CHAP: a target that does not prove this is not logged in to
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

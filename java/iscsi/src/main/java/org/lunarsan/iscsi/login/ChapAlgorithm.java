package org.lunarsan.iscsi.login;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The hash of a CHAP exchange, strongest first. RFC 7143 §12.1.3; numbers by IANA.
 *
 * <p>Threads: immutable.
 */
public enum ChapAlgorithm {
    /** SHA3-256, number 8. */
    SHA3_256(8, 32, "SHA3-256"),

    /** SHA-256, number 7. */
    SHA256(7, 32, "SHA-256"),

    /** SHA-1, number 6. */
    SHA1(6, 20, "SHA-1"),

    /** MD5, number 5. */
    MD5(5, 16, "MD5");

    private final int number;
    private final int hashBytes;
    private final String digest;

    ChapAlgorithm(int number, int hashBytes, String digest) {
        this.number = number;
        this.hashBytes = hashBytes;
        this.digest = digest;
    }

    /**
     * Returns the algorithm with a number.
     *
     * @param number as in CHAP_A
     * @return the algorithm; empty if it is not known
     */
    public static Optional<ChapAlgorithm> numbered(long number) {
        return Stream.of(values()).filter(algorithm -> algorithm.number == number).findFirst();
    }

    /**
     * Formats a list for CHAP_A.
     *
     * @param algorithms best first
     * @return their numbers
     */
    static String list(List<ChapAlgorithm> algorithms) {
        return algorithms.stream().map(algorithm -> Integer.toString(algorithm.number))
                .collect(Collectors.joining(","));
    }

    /**
     * The number in CHAP_A.
     *
     * @return 5 to 8
     */
    public int number() {
        return number;
    }

    /**
     * Length of a response.
     *
     * @return bytes
     */
    public int hashBytes() {
        return hashBytes;
    }

    /** Creates a new hash. */
    MessageDigest digest() {
        try {
            return MessageDigest.getInstance(digest);
        } catch (NoSuchAlgorithmException missing) {
            throw new IllegalStateException("this Java has no " + digest
                    + "; take it from the CHAP algorithms that are offered", missing);
        }
    }
}

package org.lunarsan.iscsi.login;

import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Optional;
import java.util.OptionalLong;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.Values;

/**
 * One CHAP challenge, ours or the peer's, and the checks of its answer. RFC 1994, RFC 7143 §9.2.1,
 * §12.1.3.
 *
 * <p>Threads: immutable.
 */
public final class Challenge {
    /**
     * Number of random bytes that {@link #fresh} needs: the identifier, and the longest challenge.
     */
    public static final int ENTROPY_BYTES = 33;

    private static final int IDENTIFIER_MAX = 255;

    private final ChapAlgorithm algorithm;
    private final int identifier;
    private final byte[] bytes;

    private Challenge(ChapAlgorithm algorithm, int identifier, byte[] bytes) {
        this.algorithm = algorithm;
        this.identifier = identifier;
        this.bytes = bytes;
    }

    /**
     * Creates our challenge from fresh random bytes; it is as long as the hash, which every peer
     * accepts.
     *
     * @param algorithm the hash in use
     * @param entropy {@link #ENTROPY_BYTES} bytes
     * @return the challenge
     */
    public static Challenge fresh(ChapAlgorithm algorithm, byte[] entropy) {
        byte[] random = Arrays.copyOfRange(entropy, 1, 1 + algorithm.hashBytes());
        return new Challenge(algorithm, Byte.toUnsignedInt(entropy[0]), random);
    }

    /**
     * Parses the peer's challenge.
     *
     * @param algorithm the hash in use
     * @param chapI CHAP_I as received
     * @param chapC CHAP_C as received
     * @return the challenge; empty if the values are not valid
     */
    public static Optional<Challenge> received(ChapAlgorithm algorithm, String chapI,
            String chapC) {
        OptionalLong identifier = Values.number(chapI);
        boolean fits = identifier.isPresent()
                && Long.compareUnsigned(identifier.getAsLong(), IDENTIFIER_MAX) <= 0;
        return !fits ? Optional.empty() : Values.binary(chapC, Key.CHAP_BYTES_MAX)
                .map(bytes -> new Challenge(algorithm, (int) identifier.getAsLong(), bytes));
    }

    /**
     * CHAP_I.
     *
     * @return 0 to 255
     */
    public int identifier() {
        return identifier;
    }

    /**
     * CHAP_C as text.
     *
     * @return a hex-constant
     */
    public String text() {
        return Values.hexText(bytes);
    }

    /**
     * Computes the response for a secret: hash(identifier, secret, challenge).
     *
     * @param secret the secret
     * @return as many bytes as the hash has
     */
    public byte[] response(Secret secret) {
        MessageDigest hash = algorithm.digest();
        hash.update((byte) identifier);
        secret.update(hash);
        return hash.digest(bytes);
    }

    /**
     * True if a response was computed with the secret. Takes the same time wherever the bytes
     * differ.
     *
     * @param chapR CHAP_R as received
     * @param secret the secret
     * @return whether it matches
     */
    public boolean isAnsweredBy(String chapR, Secret secret) {
        byte[] expected = response(secret);
        return Values.binary(chapR, algorithm.hashBytes())
                .filter(response -> MessageDigest.isEqual(expected, response)).isPresent();
    }

    /**
     * True if the peer sent our own challenge back to us. RFC 7143 §9.2.1.
     *
     * @param ours our challenge
     * @return whether the two are the same bytes
     */
    public boolean isReflectionOf(Challenge ours) {
        return Arrays.equals(bytes, ours.bytes);
    }
}

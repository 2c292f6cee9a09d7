package org.lunarsan.iscsi.login;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;

/**
 * A CHAP secret. It is never printed, and comparisons take a time that depends only on the length.
 *
 * <p>Threads: immutable.
 */
public final class Secret {
    private final byte[] bytes;

    /**
     * Creates a secret from bytes.
     *
     * @param bytes copied
     */
    public Secret(byte[] bytes) {
        this.bytes = bytes.clone();
    }

    /**
     * Creates a secret from text.
     *
     * @param text its UTF-8 bytes are the secret
     * @return the secret
     */
    public static Secret of(String text) {
        return new Secret(text.getBytes(StandardCharsets.UTF_8));
    }

    /** Feeds the secret to a hash. */
    void update(MessageDigest hash) {
        hash.update(bytes);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Secret secret && MessageDigest.isEqual(bytes, secret.bytes);
    }

    /** The same for all secrets: a hash would reveal information about the secret. */
    @Override
    public int hashCode() {
        return Secret.class.hashCode();
    }

    @Override
    public String toString() {
        return "Secret(…)";
    }
}

package org.lunarsan.iscsi.login;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;

/**
 * A CHAP secret. Nothing prints it, and it compares in a time that tells nothing but the length.
 *
 * <p>Threads: immutable.
 */
public final class Secret {
    private final byte[] bytes;

    /**
     * Takes the bytes of a secret.
     *
     * @param bytes copied
     */
    public Secret(byte[] bytes) {
        this.bytes = bytes.clone();
    }

    /**
     * Takes a secret as text.
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

    /** The same for all: a hash of a secret tells of it. */
    @Override
    public int hashCode() {
        return Secret.class.hashCode();
    }

    @Override
    public String toString() {
        return "Secret(…)";
    }
}

package org.lunarsan.iscsi.text;

import java.nio.charset.StandardCharsets;

/**
 * Text on its way out. RFC 7143 §6.1.
 *
 * <p>Threads: for one thread.
 */
public final class TextBuilder {
    private final StringBuilder text = new StringBuilder();

    /** Nothing yet. */
    public TextBuilder() {
    }

    /**
     * Adds {@code name=value} and its delimiter.
     *
     * @param name the name of the key
     * @param value its value
     * @return this
     */
    public TextBuilder pair(String name, Object value) {
        text.append(name).append('=').append(value).append('\0');
        return this;
    }

    /**
     * Adds a known key.
     *
     * @param key the key
     * @param value its value
     * @return this
     */
    public TextBuilder key(Key key, Object value) {
        return pair(key.wireName(), value);
    }

    /**
     * Adds all of another behind.
     *
     * @param other the other
     */
    public void append(TextBuilder other) {
        text.append(other.text);
    }

    /**
     * Whether nothing was added.
     *
     * @return whether it is so
     */
    public boolean isEmpty() {
        return text.isEmpty();
    }

    /**
     * The bytes, every pair with its delimiter.
     *
     * @return fresh bytes
     */
    public byte[] toBytes() {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** The names alone: values may be secret. */
    @Override
    public String toString() {
        return "TextBuilder(" + text.length() + " characters)";
    }
}

package org.lunarsan.iscsi.text;

import java.nio.charset.StandardCharsets;

/**
 * Builds outgoing text. RFC 7143 §6.1.
 *
 * <p>Threads: for one thread.
 */
public final class TextBuilder {
    private final StringBuilder text = new StringBuilder();

    /** Creates an empty text. */
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
     * Appends another text.
     *
     * @param other the other text
     */
    public void append(TextBuilder other) {
        text.append(other.text);
    }

    /**
     * True if nothing was added.
     *
     * @return whether it is so
     */
    public boolean isEmpty() {
        return text.isEmpty();
    }

    /**
     * The bytes, with a delimiter after every pair.
     *
     * @return a new array
     */
    public byte[] toBytes() {
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** The length alone: values may be secret. */
    @Override
    public String toString() {
        return "TextBuilder(" + text.length() + " characters)";
    }
}

package org.lunarsan.device;

import java.util.Locale;

/** An operation of a device. Immutable and thread-safe. */
public enum Operation {
    /** {@link Device#open()}. */
    OPEN,
    /** {@link Device#close()}. */
    CLOSE,
    /** {@link Device#read(long, java.nio.ByteBuffer)}. */
    READ,
    /** {@link Device#write(long, java.nio.ByteBuffer)}. */
    WRITE,
    /** {@link Device#flush()}. */
    FLUSH,
    /** {@link Device#unmap(long, long)}. */
    UNMAP;

    /** Returns the name in lower case, for messages. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}

package org.lunarsan.iscsi.text;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * Puts the data segments of PDUs with the C bit, and the one without that ends them, together. RFC
 * 7143 §6.1, §6.2.
 *
 * <p>Threads: for one thread.
 */
public final class Reassembler {
    /**
     * Most text that one side may send as one logical text data segment. RFC 7143 §6.1 asks for 8
     * KiB at least, and for 64 KiB where authentication items are very long.
     */
    public static final int TEXT_BYTES_MAX = 65_536;

    private final ByteArrayOutputStream text = new ByteArrayOutputStream();
    private final int textBytesMax;

    /** Holds at most {@link #TEXT_BYTES_MAX} bytes. */
    public Reassembler() {
        this(TEXT_BYTES_MAX);
    }

    /**
     * With a bound of its own.
     *
     * @param textBytesMax most bytes it holds
     */
    public Reassembler(int textBytesMax) {
        this.textBytesMax = textBytesMax;
    }

    /**
     * Takes the next data segment.
     *
     * @param segment what is left in it; its position moves to its limit
     * @param more whether the C bit is set
     * @return the whole text, or {@code null} while there is more to come
     * @throws TextViolation when it gets too long; what was held is let go
     */
    public byte[] add(ByteBuffer segment, boolean more) throws TextViolation {
        if (segment.remaining() > textBytesMax - text.size()) {
            text.reset();
            throw new TextViolation(Kind.TEXT_TOO_LONG, textBytesMax);
        }
        byte[] bytes = new byte[segment.remaining()];
        segment.get(bytes);
        text.writeBytes(bytes);
        if (more) {
            return null;
        }
        byte[] whole = text.toByteArray();
        text.reset();
        return whole;
    }

    /**
     * Whether part of a text has come, and the rest is awaited.
     *
     * @return whether it is so
     */
    public boolean isWaiting() {
        return text.size() > 0;
    }

    /** Forgets what came. */
    public void reset() {
        text.reset();
    }
}

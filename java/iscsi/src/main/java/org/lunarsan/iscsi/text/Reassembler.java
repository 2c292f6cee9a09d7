package org.lunarsan.iscsi.text;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * Joins the data segments of PDUs with the C bit, and that of the final PDU without it. RFC 7143
 * §6.1, §6.2.
 *
 * <p>Threads: for one thread.
 */
public final class Reassembler {
    /**
     * Limit of one logical text data segment. RFC 7143 §6.1 requires 8 KiB at least, and 64 KiB if
     * authentication items are very long.
     */
    public static final int TEXT_BYTES_MAX = 65_536;

    private final ByteArrayOutputStream text = new ByteArrayOutputStream();
    private final int textBytesMax;

    /** Creates a reassembler with a limit of {@link #TEXT_BYTES_MAX} bytes. */
    public Reassembler() {
        this(TEXT_BYTES_MAX);
    }

    /**
     * Creates a reassembler with another limit.
     *
     * @param textBytesMax limit in bytes
     */
    public Reassembler(int textBytesMax) {
        this.textBytesMax = textBytesMax;
    }

    /**
     * Adds the next data segment.
     *
     * @param segment read from its position to its limit; its position moves to its limit
     * @param more whether the C bit is set
     * @return the whole text, or {@code null} while there is more to come
     * @throws TextViolation when it gets too long; the held text is discarded
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
     * True if part of a text was received, and the rest is expected.
     *
     * @return true while the rest of a text is expected
     */
    public boolean isWaiting() {
        return text.size() > 0;
    }

    /** Discards the received text. */
    public void reset() {
        text.reset();
    }
}

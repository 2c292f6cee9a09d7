package org.lunarsan.iscsi.text;

import java.util.Arrays;

/**
 * Splits a text into data segments that the peer accepts. RFC 7143 §6.1.
 *
 * <p>Threads: for one thread.
 */
public final class Segmenter {
    private final byte[] text;
    private int at;

    /**
     * Creates a segmenter of a text.
     *
     * @param text not copied
     */
    public Segmenter(byte[] text) {
        this.text = text;
    }

    /**
     * True if all of the text was sent; if not, the PDU carries the C bit.
     *
     * @return whether it is so
     */
    public boolean isEmpty() {
        return at == text.length;
    }

    /**
     * Returns the next data segment.
     *
     * @param segmentBytesMax its largest length in bytes
     * @return the bytes
     */
    public byte[] next(int segmentBytesMax) {
        int to = at + Math.min(segmentBytesMax, text.length - at);
        byte[] segment = Arrays.copyOfRange(text, at, to);
        at = to;
        return segment;
    }
}

package org.lunarsan.iscsi.text;

import java.util.Arrays;

/**
 * Cuts a text into data segments that the peer can take. RFC 7143 §6.1.
 *
 * <p>Threads: for one thread.
 */
public final class Emitter {
    private final byte[] text;
    private int at;

    /**
     * Holds a text to be sent.
     *
     * @param text not copied
     */
    public Emitter(byte[] text) {
        this.text = text;
    }

    /**
     * Whether all is sent; if not, the PDU bears the C bit.
     *
     * @return whether it is so
     */
    public boolean isEmpty() {
        return at == text.length;
    }

    /**
     * The next data segment.
     *
     * @param segmentBytesMax most bytes of it
     * @return the bytes
     */
    public byte[] next(int segmentBytesMax) {
        int to = at + Math.min(segmentBytesMax, text.length - at);
        byte[] segment = Arrays.copyOfRange(text, at, to);
        at = to;
        return segment;
    }
}

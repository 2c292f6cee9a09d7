package org.lunarsan.iscsi.framing;

import java.nio.ByteBuffer;
import java.util.zip.CRC32C;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Adds digests and padding to the segments of outgoing PDUs. RFC 7143 §11.2.3, §11.2.4. It
 * allocates nothing.
 *
 * <p>Threads: confined to the writer of one connection.
 */
public final class Framer {
    private final Digests digests;
    private final CRC32C crc = new CRC32C();

    /** Largest number of bytes that {@link #endData} writes. */
    public static final int TAIL_BYTES_MAX = 3 + Digests.DIGEST_BYTES;

    /**
     * Creates a framer for one connection.
     *
     * @param digests the digests on the wire
     */
    public Framer(Digests digests) {
        this.digests = digests;
    }

    /**
     * Ends the header segments with their digest, if there is one.
     *
     * @param out holds the header segments up to its position; the digest is appended
     * @param at index of the first byte of the header
     */
    public void endHeader(ByteBuffer out, int at) {
        if (!digests.header()) {
            return;
        }
        int end = out.position();
        int value = Digests.wireOrder(crcOf(out, at, end - at));
        Fields.putI32(out, end, value);
        out.position(end + Digests.DIGEST_BYTES);
    }

    /**
     * Ends a data segment with its padding and digest, if there is one; adds nothing to an empty
     * segment.
     *
     * @param data holds the data segment; its position and limit stay
     * @param at index of the first byte of the segment
     * @param bytes length of the segment
     * @param out receives padding and digest, at most {@link #TAIL_BYTES_MAX} bytes
     */
    public void endData(ByteBuffer data, int at, int bytes, ByteBuffer out) {
        int padding = Digests.paddingBytes(bytes);
        boolean digested = digests.data() && bytes > 0;
        long value = digested ? crcOf(data, at, bytes) : 0;
        for (int filler = 0; filler < padding; filler++) {
            out.put((byte) 0);
            if (digested) {
                crc.update(0);
                value = crc.getValue();
            }
        }
        if (digested) {
            int end = out.position();
            Fields.putI32(out, end, Digests.wireOrder(value));
            out.position(end + Digests.DIGEST_BYTES);
        }
    }

    private long crcOf(ByteBuffer bytes, int at, int length) {
        int position = bytes.position();
        int limit = bytes.limit();
        crc.reset();
        bytes.limit(at + length).position(at);
        crc.update(bytes);
        bytes.limit(limit).position(position);
        return crc.getValue();
    }
}

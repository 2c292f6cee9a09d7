package org.lunarsan.iscsi.framing;

/**
 * The digests on the wire in both directions of one connection. RFC 7143 §13.1.
 *
 * <p>Threads: immutable.
 *
 * @param header a CRC32C after the header segments
 * @param data a CRC32C after a data segment that is not empty
 */
public record Digests(boolean header, boolean data) {
    /** No digests. */
    public static final Digests NONE = new Digests(false, false);

    /** Length of one digest in bytes. */
    public static final int DIGEST_BYTES = 4;

    /**
     * Returns the number of bytes that pad a data segment to whole words. RFC 7143 §11.2.4.
     *
     * @param bytes its length
     * @return 0 to 3
     */
    public static int paddingBytes(int bytes) {
        return -bytes & 3;
    }

    /**
     * Returns the four bytes of a CRC as a big-endian number: the only field of iSCSI in that
     * order.
     */
    static int wireOrder(long crc) {
        return Integer.reverseBytes((int) crc);
    }
}

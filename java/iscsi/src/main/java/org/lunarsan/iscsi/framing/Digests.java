package org.lunarsan.iscsi.framing;

/**
 * Which digests stand on the wire in both directions of one connection. RFC 7143 §13.1.
 *
 * <p>Threads: immutable.
 *
 * @param header a CRC32C behind the header segments
 * @param data a CRC32C behind a data segment that is not empty
 */
public record Digests(boolean header, boolean data) {
    /** Neither. */
    public static final Digests NONE = new Digests(false, false);

    /** Length of one digest in bytes. */
    public static final int DIGEST_BYTES = 4;

    /**
     * How many bytes fill a data segment up to whole words. RFC 7143 §11.2.4.
     *
     * @param bytes its length
     * @return 0 to 3
     */
    public static int paddingBytes(int bytes) {
        return -bytes & 3;
    }

    /** The four bytes of a CRC as a big-endian number: the one field of iSCSI in that order. */
    static int wireOrder(long crc) {
        return Integer.reverseBytes((int) crc);
    }
}

package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Standard INQUIRY data. SPC-4 §6.6.2.
 *
 * <p>Threads: immutable.
 *
 * @param qualifier peripheral qualifier; 0: the unit is present
 * @param deviceType peripheral device type; {@link #DISK} or another
 * @param vendor T10 vendor identification, without trailing spaces
 * @param product product identification, likewise
 * @param revision product revision level, likewise
 */
public record Inquiry(int qualifier, int deviceType, String vendor, String product,
        String revision) {
    /** Direct access block device. */
    public static final int DISK = 0x00;

    /** Smallest length of standard INQUIRY data in bytes. */
    public static final int BYTES_MIN = 36;

    /**
     * Decodes the answer to {@link Cdb#inquiry}.
     *
     * @param data the answer, from the position to the limit
     * @return the identity of the unit
     * @throws ScsiDataException when it is too short
     */
    public static Inquiry decode(ByteBuffer data) throws ScsiDataException {
        if (data.remaining() < BYTES_MIN) {
            throw new ScsiDataException("INQUIRY is answered by " + data.remaining()
                    + " bytes, fewer than " + BYTES_MIN);
        }
        int at = data.position();
        int first = Fields.u8(data, at);
        return new Inquiry(first >> 5, first & 0x1f, text(data, at + 8, 8), text(data, at + 16, 16),
                text(data, at + 32, 4));
    }

    /**
     * Replaces bytes other than printable ASCII by question marks, since the text is used in
     * messages.
     */
    static String text(ByteBuffer data, int at, int bytes) {
        byte[] raw = new byte[bytes];
        data.get(at, raw);
        for (int index = 0; index < bytes; index++) {
            boolean printable = raw[index] >= 0x20 && raw[index] < 0x7f;
            raw[index] = printable || raw[index] == 0 ? raw[index] : (byte) '?';
        }
        return new String(raw, StandardCharsets.US_ASCII).replace('\0', ' ').strip();
    }
}

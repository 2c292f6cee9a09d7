package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * The answer to REPORT LUNS. SPC-4 §6.33.
 *
 * <p>Threads: no state.
 */
public final class ReportedLuns {
    /** Length of the header before the first LUN in bytes. */
    public static final int HEADER_BYTES = 8;

    private ReportedLuns() {
    }

    /**
     * Decodes the answer to {@link Cdb#reportLuns}; LUNs that did not fit are left out.
     *
     * @param data the answer, from the position to the limit
     * @return LUN fields, see {@link org.lunarsan.iscsi.wire.Lun}
     * @throws ScsiDataException when it is too short
     */
    public static long[] decode(ByteBuffer data) throws ScsiDataException {
        if (data.remaining() < HEADER_BYTES) {
            throw new ScsiDataException("REPORT LUNS has a truncated answer");
        }
        int at = data.position();
        long listBytes = Integer.toUnsignedLong(Fields.i32(data, at));
        int bytes = (int) Math.min(listBytes, data.remaining() - HEADER_BYTES);
        long[] luns = new long[bytes / Long.BYTES];
        for (int index = 0; index < luns.length; index++) {
            luns[index] = Fields.i64(data, at + HEADER_BYTES + index * Long.BYTES);
        }
        return luns;
    }
}

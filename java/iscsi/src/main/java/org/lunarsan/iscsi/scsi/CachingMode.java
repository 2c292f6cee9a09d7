package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Caching and write protection, from MODE SENSE (6). SPC-4 §7.5, SBC-3 §6.4.5.
 *
 * <p>Threads: immutable.
 *
 * @param isWriteProtected WP
 * @param knowsForceUnitAccess DPOFUA
 * @param hasWriteCache WCE; false if the unit does not report it
 */
public record CachingMode(boolean isWriteProtected, boolean knowsForceUnitAccess,
        boolean hasWriteCache) {
    /** The caching page. */
    static final int PAGE = 0x08;

    private static final int HEADER_BYTES = 4;

    /**
     * Decodes the answer to {@link Cdb#modeSenseCaching}.
     *
     * @param data the answer, from the position to the limit
     * @return the mode
     * @throws ScsiDataException when it is too short
     */
    public static CachingMode decode(ByteBuffer data) throws ScsiDataException {
        int at = data.position();
        if (data.remaining() < HEADER_BYTES) {
            throw new ScsiDataException("MODE SENSE has a truncated answer");
        }
        int specific = Fields.u8(data, at + 2);
        int page = at + HEADER_BYTES + Fields.u8(data, at + 3);
        boolean caching = page + 2 < data.limit() && (Fields.u8(data, page) & 0x3f) == PAGE;
        return new CachingMode((specific & 0x80) != 0, (specific & 0x10) != 0,
                caching && (Fields.u8(data, page + 2) & 0x04) != 0);
    }
}

package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.lunarsan.iscsi.wire.Fields;

/**
 * A vital product data page. SPC-4 §7.8.
 *
 * <p>Threads: immutable.
 */
public final class VitalPage {
    /** Supported pages. */
    public static final int SUPPORTED = 0x00;

    /** Unit serial number. */
    public static final int SERIAL_NUMBER = 0x80;

    /** Device identification. */
    public static final int DEVICE_IDENTIFICATION = 0x83;

    /** Block limits. SBC-3 §6.5.3. */
    public static final int BLOCK_LIMITS = 0xb0;

    /** Logical block provisioning. SBC-3 §6.5.4. */
    public static final int LOGICAL_BLOCK_PROVISIONING = 0xb2;

    private static final int HEADER_BYTES = 4;

    private final ByteBuffer body;

    private VitalPage(ByteBuffer body) {
        this.body = body;
    }

    /**
     * A designator of the device identification page. SPC-4 §7.8.6.
     *
     * @param association 0: the unit, 1: the port, 2: the device
     * @param type 1: T10 vendor, 2: EUI-64, 3: NAA, 8: SCSI name string
     * @param text as text if its code set is a text code set, else in hex
     */
    public record Designator(int association, int type, String text) {
    }

    /**
     * Block limits; 0 if the unit does not report one. SBC-3 §6.5.3.
     *
     * @param transferGranularityBlocks OPTIMAL TRANSFER LENGTH GRANULARITY
     * @param transferBlocksMax MAXIMUM TRANSFER LENGTH
     * @param transferBlocksBest OPTIMAL TRANSFER LENGTH
     * @param unmapBlocksMax MAXIMUM UNMAP LBA COUNT
     * @param unmapDescriptorsMax MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT
     * @param unmapGranularityBlocks OPTIMAL UNMAP GRANULARITY
     * @param writeSameBlocksMax MAXIMUM WRITE SAME LENGTH; as the bits of a {@code long}
     */
    public record BlockLimits(int transferGranularityBlocks, long transferBlocksMax,
            long transferBlocksBest, long unmapBlocksMax, long unmapDescriptorsMax,
            long unmapGranularityBlocks, long writeSameBlocksMax) {
    }

    /**
     * Logical block provisioning. SBC-3 §6.5.4.
     *
     * @param unmaps UNMAP is supported (LBPU)
     * @param writeSameUnmaps WRITE SAME (16) may unmap (LBPWS)
     * @param unmappedReadsZeroes blocks that are not mapped read as zeroes (LBPRZ)
     */
    public record Provisioning(boolean unmaps, boolean writeSameUnmaps,
            boolean unmappedReadsZeroes) {
    }

    /**
     * Decodes the answer to {@link Cdb#vitalPage}.
     *
     * @param data the answer, from the position to the limit
     * @param page the requested page
     * @return the page; empty for another page, with which some units answer
     */
    public static Optional<VitalPage> decode(ByteBuffer data, int page) {
        int at = data.position();
        if (data.remaining() < HEADER_BYTES || Fields.u8(data, at + 1) != page) {
            return Optional.empty();
        }
        int bytes = Math.min(Fields.u16(data, at + 2), data.remaining() - HEADER_BYTES);
        byte[] body = new byte[bytes];
        data.get(at + HEADER_BYTES, body);
        return Optional.of(new VitalPage(ByteBuffer.wrap(body)));
    }

    /**
     * True if a {@link #SUPPORTED} page lists a page.
     *
     * @param page the page
     * @return whether it does
     */
    public boolean names(int page) {
        for (int at = 0; at < body.limit(); at++) {
            if (Fields.u8(body, at) == page) {
                return true;
            }
        }
        return false;
    }

    /**
     * The serial number of a {@link #SERIAL_NUMBER} page.
     *
     * @return the number
     */
    public String serialNumber() {
        return Inquiry.text(body, 0, body.limit());
    }

    /**
     * The designators of a {@link #DEVICE_IDENTIFICATION} page. Those that reach beyond the end of
     * the page are left out.
     *
     * @return the designators in their order
     */
    public List<Designator> designators() {
        List<Designator> found = new ArrayList<>();
        int at = 0;
        while (body.limit() - at >= HEADER_BYTES) {
            int bytes = Fields.u8(body, at + 3);
            int end = at + HEADER_BYTES + bytes;
            if (end > body.limit()) {
                break;
            }
            int kind = Fields.u8(body, at + 1);
            boolean isText = (Fields.u8(body, at) & 0x0f) >= 2;
            String text = isText ? Inquiry.text(body, at + HEADER_BYTES, bytes)
                    : HexFormat.of().formatHex(body.array(), at + HEADER_BYTES, end);
            found.add(new Designator(kind >> 4 & 0x03, kind & 0x0f, text));
            at = end;
        }
        return found;
    }

    /**
     * The limits of a {@link #BLOCK_LIMITS} page.
     *
     * @return the limits
     */
    public BlockLimits blockLimits() {
        // Older units have a shorter page.
        final int bytes = 60;
        ByteBuffer page = ByteBuffer.allocate(bytes);
        page.put(0, body, 0, Math.min(bytes, body.limit()));
        return new BlockLimits(Fields.u16(page, 2), u32(page, 4), u32(page, 8), u32(page, 16),
                u32(page, 20), u32(page, 24), Fields.i64(page, 32));
    }

    /**
     * The fields of a {@link #LOGICAL_BLOCK_PROVISIONING} page.
     *
     * @return the abilities of the unit
     */
    public Provisioning provisioning() {
        int flags = body.limit() >= 2 ? Fields.u8(body, 1) : 0;
        return new Provisioning((flags & 0x80) != 0, (flags & 0x40) != 0, (flags & 0x1c) != 0);
    }

    private static long u32(ByteBuffer page, int at) {
        return Integer.toUnsignedLong(Fields.i32(page, at));
    }
}

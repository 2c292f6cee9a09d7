package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Encodes Command Descriptor Blocks into 16 bytes; shorter ones are padded with zeroes. LBAs and
 * lengths count logical blocks of the unit. Nothing is allocated for the commands of the data path.
 *
 * <p>Threads: no state.
 */
public final class Cdb {
    /** FUA of READ and WRITE: the medium, not the cache. */
    public static final int FORCE_UNIT_ACCESS = 0x08;

    /** UNMAP of WRITE SAME: the blocks may be unmapped if they then read as the written data. */
    public static final int MAY_UNMAP = 0x08;

    /** Length of the answer to READ CAPACITY (16) in bytes. */
    public static final int CAPACITY_16_BYTES = 32;

    /** Length of the answer to READ CAPACITY (10) in bytes. */
    public static final int CAPACITY_10_BYTES = 8;

    /** Largest length of the answer to MODE SENSE (6) in bytes. */
    public static final int MODE_BYTES = 255;

    private static final int INQUIRY = 0x12;
    private static final int MODE_SENSE_6 = 0x1a;
    private static final int READ_CAPACITY_10 = 0x25;
    private static final int UNMAP = 0x42;
    private static final int READ_16 = 0x88;
    private static final int WRITE_16 = 0x8a;
    private static final int SYNCHRONIZE_CACHE_16 = 0x91;
    private static final int WRITE_SAME_16 = 0x93;
    private static final int SERVICE_ACTION_IN_16 = 0x9e;
    private static final int READ_CAPACITY_16_ACTION = 0x10;
    private static final int REPORT_LUNS = 0xa0;

    private static final int DISABLE_BLOCK_DESCRIPTORS = 0x08;
    private static final int UNMAP_HEADER_BYTES = 8;
    private static final int UNMAP_DESCRIPTOR_BYTES = 16;

    private Cdb() {
    }

    /**
     * TEST UNIT READY. SPC-4 §6.47.
     *
     * @param cdb 16 bytes
     */
    public static void testUnitReady(byte[] cdb) {
        Arrays.fill(cdb, (byte) 0);
    }

    /**
     * INQUIRY for the standard data. SPC-4 §6.6.
     *
     * @param cdb 16 bytes
     * @param bytesMax most bytes of the answer, 36 to 65,535
     */
    public static void inquiry(byte[] cdb, int bytesMax) {
        begin(cdb, INQUIRY, 0);
        put16(cdb, 3, bytesMax);
    }

    /**
     * INQUIRY for a vital product data page. SPC-4 §6.6, §7.8.
     *
     * @param cdb 16 bytes
     * @param page the page, see {@link VitalPage}
     * @param bytesMax most bytes of the answer, at most 65,535
     */
    public static void vitalPage(byte[] cdb, int page, int bytesMax) {
        begin(cdb, INQUIRY, 1);
        cdb[2] = (byte) page;
        put16(cdb, 3, bytesMax);
    }

    /**
     * READ CAPACITY (16). SBC-3 §5.17.
     *
     * @param cdb 16 bytes
     */
    public static void readCapacity16(byte[] cdb) {
        begin(cdb, SERVICE_ACTION_IN_16, READ_CAPACITY_16_ACTION);
        put32(cdb, 10, CAPACITY_16_BYTES);
    }

    /**
     * READ CAPACITY (10), for units without the longer one. SBC-3 §5.16.
     *
     * @param cdb 16 bytes
     */
    public static void readCapacity10(byte[] cdb) {
        begin(cdb, READ_CAPACITY_10, 0);
    }

    /**
     * MODE SENSE (6) for the caching page, without block descriptors. SPC-4 §6.13, SBC-3 §6.4.5.
     *
     * @param cdb 16 bytes
     */
    public static void modeSenseCaching(byte[] cdb) {
        begin(cdb, MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS);
        cdb[2] = CachingMode.PAGE;
        cdb[4] = (byte) MODE_BYTES;
    }

    /**
     * READ (16). SBC-3 §5.13.
     *
     * @param cdb 16 bytes
     * @param lba first block
     * @param blocks number of blocks
     */
    public static void read16(byte[] cdb, long lba, int blocks) {
        transfer(cdb, READ_16, 0, lba, blocks);
    }

    /**
     * WRITE (16). SBC-3 §5.35.
     *
     * @param cdb 16 bytes
     * @param flags 0, or {@link #FORCE_UNIT_ACCESS}
     * @param lba first block
     * @param blocks number of blocks
     */
    public static void write16(byte[] cdb, int flags, long lba, int blocks) {
        transfer(cdb, WRITE_16, flags, lba, blocks);
    }

    /**
     * WRITE SAME (16); the data is one block. SBC-3 §5.45.
     *
     * @param cdb 16 bytes
     * @param flags 0, or {@link #MAY_UNMAP}
     * @param lba first block
     * @param blocks number of blocks; 0 means up to the end if the unit allows it
     */
    public static void writeSame16(byte[] cdb, int flags, long lba, int blocks) {
        transfer(cdb, WRITE_SAME_16, flags, lba, blocks);
    }

    /**
     * SYNCHRONIZE CACHE (16). SBC-3 §5.27.
     *
     * @param cdb 16 bytes
     * @param lba first block
     * @param blocks number of blocks; 0 means up to the end
     */
    public static void synchronizeCache16(byte[] cdb, long lba, int blocks) {
        transfer(cdb, SYNCHRONIZE_CACHE_16, 0, lba, blocks);
    }

    /**
     * UNMAP, whose data is encoded by {@link #unmapList}. SBC-3 §5.28.
     *
     * @param cdb 16 bytes
     * @param listBytes length of the data
     */
    public static void unmap(byte[] cdb, int listBytes) {
        begin(cdb, UNMAP, 0);
        put16(cdb, 7, listBytes);
    }

    /**
     * REPORT LUNS: all units that the initiator may see. SPC-4 §6.33.
     *
     * @param cdb 16 bytes
     * @param bytesMax most bytes of the answer, at least 16
     */
    public static void reportLuns(byte[] cdb, int bytesMax) {
        begin(cdb, REPORT_LUNS, 0);
        put32(cdb, 6, bytesMax);
    }

    /**
     * Encodes the data of an {@link #unmap} of one range.
     *
     * @param out destination; its position moves
     * @param lba first block
     * @param blocks number of blocks
     * @return number of bytes
     */
    public static int unmapList(ByteBuffer out, long lba, int blocks) {
        int at = out.position();
        int bytes = UNMAP_HEADER_BYTES + UNMAP_DESCRIPTOR_BYTES;
        Fields.putU16(out, at, bytes - Short.BYTES);
        Fields.putU16(out, at + 2, UNMAP_DESCRIPTOR_BYTES);
        Fields.putI32(out, at + 4, 0);
        Fields.putI64(out, at + 8, lba);
        Fields.putI32(out, at + 16, blocks);
        Fields.putI32(out, at + 20, 0);
        out.position(at + bytes);
        return bytes;
    }

    private static void transfer(byte[] cdb, int opcode, int flags, long lba, int blocks) {
        begin(cdb, opcode, flags);
        put32(cdb, 2, (int) (lba >>> 32));
        put32(cdb, 6, (int) lba);
        put32(cdb, 10, blocks);
    }

    private static void begin(byte[] cdb, int opcode, int second) {
        Arrays.fill(cdb, (byte) 0);
        cdb[0] = (byte) opcode;
        cdb[1] = (byte) second;
    }

    private static void put16(byte[] cdb, int at, int value) {
        cdb[at] = (byte) (value >>> 8);
        cdb[at + 1] = (byte) value;
    }

    private static void put32(byte[] cdb, int at, int value) {
        put16(cdb, at, value >>> 16);
        put16(cdb, at + 2, value);
    }
}

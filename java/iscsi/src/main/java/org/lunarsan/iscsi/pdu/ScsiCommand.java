package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * A SCSI command, perhaps with immediate data. RFC 7143 §11.3.
 *
 * <p>Uses {@link ScsiCommandView}, which reads and writes the same fields without an allocation.
 *
 * <p>Threads: immutable.
 *
 * @param first byte 0: the I bit (requests only) and the opcode
 * @param flags byte 1: flag bits
 * @param priority command priority in the high four bits, RFC 7144 §5.1; zero below protocol level
 *        2
 * @param totalAhsWords TotalAHSLength, in words of four bytes
 * @param dataSegmentLength DataSegmentLength in bytes, without padding
 * @param lun LUN field, see {@link org.lunarsan.iscsi.wire.Lun}
 * @param initiatorTaskTag Initiator Task Tag
 * @param expectedDataTransferLength Expected Data Transfer Length in bytes
 * @param cmdSn CmdSN
 * @param expStatSn ExpStatSN
 * @param cdb the first 16 bytes of the CDB; longer ones continue in an AHS, §11.2.2.3
 */
public record ScsiCommand(int first, int flags, int priority, int totalAhsWords,
        int dataSegmentLength, long lun, int initiatorTaskTag, int expectedDataTransferLength,
        int cmdSn, int expStatSn, byte[] cdb) implements InitiatorPdu {
    /** F: no unsolicited data follows. */
    public static final int FINAL = 0x80;

    /** R: data is expected. */
    public static final int READ = 0x40;

    /** W: data will be sent. */
    public static final int WRITE = 0x20;

    /** ATTR, see {@link TaskAttribute}. */
    public static final int ATTRIBUTE_MASK = 0x07;

    /**
     * Checks the length of the CDB.
     *
     * @throws IllegalArgumentException when {@code cdb} does not have 16 bytes
     */
    public ScsiCommand {
        if (cdb.length != ScsiCommandView.CDB_BYTES) {
            throw new IllegalArgumentException("the CDB field has 16 bytes, not " + cdb.length);
        }
        cdb = cdb.clone();
    }

    /**
     * The first 16 bytes of the CDB.
     *
     * @return a copy
     */
    @Override
    public byte[] cdb() {
        return cdb.clone();
    }

    /**
     * Decodes the 48 bytes from the position of a buffer; accepts any bytes.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    public static ScsiCommand decode(ByteBuffer header) {
        int at = BasicHeader.advance(header);
        return new ScsiCommand(ScsiCommandView.first(header, at), ScsiCommandView.flags(header, at),
                ScsiCommandView.priority(header, at), ScsiCommandView.totalAhsWords(header, at),
                ScsiCommandView.dataSegmentLength(header, at), ScsiCommandView.lun(header, at),
                ScsiCommandView.initiatorTaskTag(header, at),
                ScsiCommandView.expectedDataTransferLength(header, at),
                ScsiCommandView.cmdSn(header, at), ScsiCommandView.expStatSn(header, at),
                ScsiCommandView.cdb(header, at));
    }

    @Override
    public void encode(ByteBuffer out) {
        int at = BasicHeader.clear(out);
        ScsiCommandView.encode(out, at, first, flags, priority, totalAhsWords, dataSegmentLength,
                lun, initiatorTaskTag, expectedDataTransferLength, cmdSn, expStatSn, cdb);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ScsiCommand command
                && encoded().equals(command.encoded());
    }

    @Override
    public int hashCode() {
        return encoded().hashCode();
    }

    @Override
    public String toString() {
        return "ScsiCommand[flags=0x%02x, lun=%016x, tag=0x%08x, expected=%d, cmdSn=%d, cdb=%s]"
                .formatted(flags, lun, initiatorTaskTag,
                        Integer.toUnsignedLong(expectedDataTransferLength),
                        Integer.toUnsignedLong(cmdSn), Arrays.toString(cdb));
    }

    private ByteBuffer encoded() {
        ByteBuffer bytes = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        encode(bytes);
        return bytes.flip();
    }
}

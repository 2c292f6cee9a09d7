package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.scsi.Cdb;

/**
 * A command that may be executed any number of times; all commands of a disk are of this kind.
 *
 * <p>Threads: immutable, except for the bytes of its buffer.
 *
 * @param cdb 16 bytes
 * @param data the buffer, or null
 * @param lent the buffer, if a caller may take it back; then {@code data} is null
 * @param at offset of the data in the buffer
 * @param bytes length of the data
 * @param out whether the data goes to the target
 * @param changes whether the command changes blocks of the disk
 * @param lba the first of these blocks
 * @param blocks number of these blocks
 */
record CommandRequest(byte[] cdb, ByteBuffer data, LentBuffer lent, int at, int bytes, boolean out,
        boolean changes, long lba, long blocks) {
    private static final int CDB_BYTES = 16;

    /** Creates a command with a buffer that its caller cannot take back. */
    CommandRequest(byte[] cdb, ByteBuffer data, int at, int bytes, boolean out, boolean changes,
            long lba,
            long blocks) {
        this(cdb, data, null, at, bytes, out, changes, lba, blocks);
    }

    /** Creates a READ or WRITE of blocks. */
    static CommandRequest transfer(boolean write, long lba, int blocks, ByteBuffer data, int at,
            int bytes) {
        byte[] cdb = new byte[CDB_BYTES];
        encode(cdb, write, lba, blocks);
        return new CommandRequest(cdb, data, at, bytes, write, write, lba, blocks);
    }

    /** Creates a READ or WRITE with a buffer that its caller may take back. */
    static CommandRequest lent(boolean write, long lba, int blocks, LentBuffer lent) {
        byte[] cdb = new byte[CDB_BYTES];
        encode(cdb, write, lba, blocks);
        return new CommandRequest(cdb, null, lent, 0, lent.bytes(), write, write, lba, blocks);
    }

    /** Creates a command without data that changes nothing. */
    static CommandRequest plain(byte[] cdb) {
        return new CommandRequest(cdb, null, 0, 0, false, false, 0, 0);
    }

    /** Encodes a READ (16) or WRITE (16). */
    static void encode(byte[] cdb, boolean write, long lba, int blocks) {
        if (write) {
            Cdb.write16(cdb, 0, lba, blocks);
        } else {
            Cdb.read16(cdb, lba, blocks);
        }
    }

    /** Encodes the command in a task. */
    void fill(Task task, long lun) {
        task.clear();
        task.lun(lun);
        System.arraycopy(cdb, 0, task.cdb(), 0, cdb.length);
        if (lent != null) {
            lent.lend(task);
        } else if (bytes > 0 && out) {
            task.dataOut(data.duplicate(), at, bytes);
        } else if (bytes > 0) {
            task.into(data, at, bytes, data.duplicate());
        }
    }

    /** Ends the use of the buffer by a task that has completed. */
    void release() {
        if (lent != null) {
            lent.release();
        }
    }

    /** Returns the number of the write in {@link UncertainWrites} if its caller has given it up. */
    long uncertainWriteNumber() {
        return lent == null ? UncertainWrites.NEW : lent.uncertainWriteNumber();
    }
}

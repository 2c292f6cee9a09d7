package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Objects;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.pdu.ScsiCommandView;
import org.lunarsan.iscsi.pdu.TaskAttribute;

/**
 * A SCSI command to execute, and what came of it. RFC 7143 §11.3, §11.4.
 *
 * <p>Meant to be kept and used again: {@link #clear}, then set what is asked. A driver may extend
 * it with what it needs to know of the one who waits.
 *
 * <p>Threads: as {@link Request}. While it is in hand the driver's reader may write into the
 * data-in range, and its writer reads the data-out range.
 */
public non-sealed class Command extends Request {
    private static final byte[] NO_SENSE = new byte[0];

    private final byte[] cdb = new byte[ScsiCommandView.CDB_BYTES];
    private byte[] longCdb;
    private long lun;
    private int attribute;
    private int priority;
    private ByteBuffer dataOut;
    private int dataOutAt;
    private int dataOutBytes;
    private ByteBuffer dataIn;
    private int dataInAt;
    private int dataInBytesMax;

    /** The function that may end it: with FastAbort no more data is sent until its answer. */
    Management pausedBy;
    /** What R2Ts have asked for, with the unsolicited data at the start. */
    final Coverage asked = new Coverage();
    final Coverage received = new Coverage();
    /** R2Ts whose data is not wholly sent. */
    int r2tsOpen;
    /** The next DataSN or R2TSN: one sequence for both. RFC 7143 §4.2.2.4. */
    int inputSn;

    int response;
    int status;
    int statusQualifier;
    byte[] sense = NO_SENSE;
    int dataInBytes;
    Residual residual = Residual.NONE;
    int residualBytes;
    Residual readResidual = Residual.NONE;
    int readResidualBytes;

    /** A command for LUN 0 with an empty CDB and no data. */
    public Command() {
        clear();
    }

    /**
     * As new; buffers are let go.
     *
     * @return this
     */
    public final Command clear() {
        requireIdle();
        Arrays.fill(cdb, (byte) 0);
        longCdb = null;
        lun = 0;
        attribute = TaskAttribute.SIMPLE;
        priority = 0;
        immediate = false;
        dataOut = null;
        dataOutBytes = 0;
        dataIn = null;
        dataInBytesMax = 0;
        return this;
    }

    /**
     * For which unit.
     *
     * @param field see {@link org.lunarsan.iscsi.wire.Lun}
     * @return this
     */
    public final Command lun(long field) {
        requireIdle();
        lun = field;
        return this;
    }

    /**
     * The 16 bytes of the CDB, to be written into; shorter ones are padded with zeroes.
     *
     * @return the bytes themselves
     */
    public final byte[] cdb() {
        return longCdb == null ? cdb : longCdb;
    }

    /**
     * A CDB of more than 16 bytes, which goes on in an Additional Header Segment. RFC 7143
     * §11.2.2.3.
     *
     * @param whole 17 to {@link CommandSegments#CDB_BYTES_MAX} bytes, not copied
     * @return this
     */
    public final Command longCdb(byte[] whole) {
        requireIdle();
        longCdb = whole;
        return this;
    }

    /**
     * Data for the target; its length is the Expected Data Transfer Length.
     *
     * @param buffer its position and limit are neither used nor changed
     * @param at where the data begins in it
     * @param bytes how much
     * @return this
     * @throws IndexOutOfBoundsException when the range is not inside the buffer
     */
    public final Command dataOut(ByteBuffer buffer, int at, int bytes) {
        requireIdle();
        Objects.checkFromIndexSize(at, bytes, buffer.capacity());
        dataOut = buffer;
        dataOutAt = at;
        dataOutBytes = bytes;
        return this;
    }

    /**
     * Where data of the target goes, and how much is expected. With data-out as well, the command
     * is bidirectional.
     *
     * @param buffer its position and limit are neither used nor changed
     * @param at where the data begins in it
     * @param bytes how much at most
     * @return this
     * @throws IndexOutOfBoundsException when the range is not inside the buffer
     */
    public final Command dataIn(ByteBuffer buffer, int at, int bytes) {
        requireIdle();
        Objects.checkFromIndexSize(at, bytes, buffer.capacity());
        dataIn = buffer;
        dataInAt = at;
        dataInBytesMax = bytes;
        return this;
    }

    /**
     * How it is ordered among the others.
     *
     * @param value see {@link TaskAttribute}
     * @return this
     */
    public final Command attribute(int value) {
        requireIdle();
        attribute = value;
        return this;
    }

    /**
     * Command priority. Not sent below iSCSIProtocolLevel 2. RFC 7144 §5.1.1.
     *
     * @param value 0 says nothing, else 1 is the highest of 15
     * @return this
     */
    public final Command priority(int value) {
        requireIdle();
        priority = value;
        return this;
    }

    /**
     * Whether it goes ahead of the commands that wait, the window being open or not.
     *
     * @param value whether
     * @return this
     */
    public final Command immediate(boolean value) {
        requireIdle();
        immediate = value;
        return this;
    }

    /**
     * For which unit.
     *
     * @return the LUN field
     */
    public final long lun() {
        return lun;
    }

    /**
     * The buffer of {@link #dataIn(ByteBuffer, int, int)}.
     *
     * @return the buffer, or {@code null}
     */
    public final ByteBuffer dataInBuffer() {
        return dataIn;
    }

    /**
     * Where the data begins in {@link #dataInBuffer}.
     *
     * @return the place
     */
    public final int dataInAt() {
        return dataInAt;
    }

    /**
     * How much data is expected at most.
     *
     * @return bytes
     */
    public final int dataInBytesMax() {
        return dataInBytesMax;
    }

    /**
     * How much data is for the target.
     *
     * @return bytes
     */
    public final int dataOutBytes() {
        return dataOutBytes;
    }

    /**
     * Whether it reached the SCSI layer of the target; if not, the status means nothing.
     *
     * @return see {@link org.lunarsan.iscsi.pdu.ServiceResponse}
     */
    public final int response() {
        return response;
    }

    /**
     * SAM status byte.
     *
     * @return see {@link org.lunarsan.iscsi.scsi.Status}
     */
    public final int status() {
        return status;
    }

    /**
     * Status qualifier, SAM-5 §5.3.2.
     *
     * @return 0 below iSCSIProtocolLevel 2 (RFC 7144 §5.2.1)
     */
    public final int statusQualifier() {
        return statusQualifier;
    }

    /**
     * Sense data, without the SenseLength field.
     *
     * @return the bytes, empty if there are none; not to be changed
     */
    public final byte[] sense() {
        return sense;
    }

    /**
     * How much of the data-in range holds data of the target, from its start.
     *
     * @return bytes
     */
    public final int dataInBytes() {
        return dataInBytes;
    }

    /**
     * The residual of data-out if the command had any, else of data-in.
     *
     * @return its kind
     */
    public final Residual residual() {
        return residual;
    }

    /**
     * How many bytes {@link #residual} is about.
     *
     * @return 0 to 2^32 - 1
     */
    public final long residualBytes() {
        return Integer.toUnsignedLong(residualBytes);
    }

    /**
     * The residual of data-in, if the command is bidirectional.
     *
     * @return its kind
     */
    public final Residual readResidual() {
        return readResidual;
    }

    /**
     * How many bytes {@link #readResidual} is about.
     *
     * @return 0 to 2^32 - 1
     */
    public final long readResidualBytes() {
        return Integer.toUnsignedLong(readResidualBytes);
    }

    /** The same data lies elsewhere from now on. */
    final void moveDataOut(ByteBuffer buffer, int at) {
        Objects.checkFromIndexSize(at, dataOutBytes, buffer.capacity());
        dataOut = buffer;
        dataOutAt = at;
    }

    final boolean isBidirectional() {
        return dataOutBytes > 0 && dataInBytesMax > 0;
    }

    final int attribute() {
        return attribute;
    }

    final int priority() {
        return priority;
    }

    final ByteBuffer dataOutBuffer() {
        return dataOut;
    }

    final int dataOutAt() {
        return dataOutAt;
    }

    @Override
    final void begin() {
        super.begin();
        pausedBy = null;
        received.reset(0);
        asked.reset(0);
        r2tsOpen = 0;
        inputSn = 0;
        response = 0;
        status = 0;
        statusQualifier = 0;
        sense = NO_SENSE;
        dataInBytes = 0;
        residual = Residual.NONE;
        residualBytes = 0;
        readResidual = Residual.NONE;
        readResidualBytes = 0;
    }

    private void requireIdle() {
        if (state != IDLE) {
            throw new IllegalStateException("the command is in hand; wait until it comes back");
        }
    }
}

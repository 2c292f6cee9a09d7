package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Objects;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.pdu.ScsiCommandView;
import org.lunarsan.iscsi.pdu.TaskAttribute;

/**
 * A SCSI command and its result. RFC 7143 §11.3, §11.4.
 *
 * <p>Meant for reuse: call {@link #clear}, then set the fields of the next command. A driver may
 * extend the class with state of the waiting caller.
 *
 * <p>Threads: as {@link Request}. While the command is pending, the driver's reader may write into
 * the data-in range, and its writer reads the data-out range.
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

    /**
     * The function that may end the command: with FastAbort no more data is sent until its answer.
     */
    Management pausedBy;
    /** The ranges solicited by R2Ts, with the unsolicited data at the start. */
    final Coverage asked = new Coverage();
    final Coverage received = new Coverage();
    /** Number of R2Ts whose data is not completely sent. */
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

    /** Creates a command for LUN 0 with an empty CDB and no data. */
    public Command() {
        clear();
    }

    /**
     * Resets the command and releases its buffers.
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
     * Sets the unit.
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
     * @return the array itself
     */
    public final byte[] cdb() {
        return longCdb == null ? cdb : longCdb;
    }

    /**
     * Sets a CDB of more than 16 bytes, which continues in an Additional Header Segment. RFC 7143
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
     * Sets the data for the target; its length is the Expected Data Transfer Length.
     *
     * @param buffer its position and limit are neither used nor changed
     * @param at index of the first byte
     * @param bytes length
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
     * Sets the destination of the target's data and its expected length. With data-out as well, the
     * command is bidirectional.
     *
     * @param buffer its position and limit are neither used nor changed
     * @param at index of the first byte
     * @param bytes maximum length
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
     * Sets the task attribute.
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
     * Sets the command priority. Not sent below iSCSIProtocolLevel 2. RFC 7144 §5.1.1.
     *
     * @param value 0: none, else 1 is the highest of 15
     * @return this
     */
    public final Command priority(int value) {
        requireIdle();
        priority = value;
        return this;
    }

    /**
     * Sets immediate delivery: the command precedes waiting ones, even if the window is closed.
     *
     * @param value whether to deliver immediately
     * @return this
     */
    public final Command immediate(boolean value) {
        requireIdle();
        immediate = value;
        return this;
    }

    /**
     * The unit of the command.
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
     * Index of the first byte in {@link #dataInBuffer}.
     *
     * @return the index
     */
    public final int dataInAt() {
        return dataInAt;
    }

    /**
     * Maximum length of the expected data.
     *
     * @return bytes
     */
    public final int dataInBytesMax() {
        return dataInBytesMax;
    }

    /**
     * Length of the data for the target.
     *
     * @return bytes
     */
    public final int dataOutBytes() {
        return dataOutBytes;
    }

    /**
     * The response, which tells whether the command reached the SCSI layer of the target; otherwise
     * the status is invalid.
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
     * Length of the data of the target, from the start of the data-in range.
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
     * Number of bytes of {@link #residual}.
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
     * Number of bytes of {@link #readResidual}.
     *
     * @return 0 to 2^32 - 1
     */
    public final long readResidualBytes() {
        return Integer.toUnsignedLong(readResidualBytes);
    }

    /** Sets another buffer that holds the same data. */
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
            throw new IllegalStateException("the command is pending; wait until it has completed");
        }
    }
}

package org.lunarsan.iscsi.connection;

import java.nio.ByteBuffer;
import org.lunarsan.iscsi.framing.CommandSegments;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * The data segment of a PDU that {@link InitiatorConnection#poll} encoded. Its bytes are not
 * copied: its request does not complete until {@link InitiatorConnection#sent} is called, so that
 * the caller does not change them.
 *
 * <p>Threads: the writer's. To send several PDUs at once, it uses several objects.
 */
public final class Outgoing {
    /**
     * Largest size of the header segments of one PDU with their digest, in bytes: the longest CDB
     * and a bidirectional read length.
     */
    public static final int HEADER_BYTES_MAX = BasicHeader.HEADER_BYTES + 4
            + CommandSegments.CDB_BYTES_MAX + 8 + Digests.DIGEST_BYTES;

    private ByteBuffer data;
    private int at;
    private int bytes;
    private Request holder;

    /** Creates an empty object. */
    public Outgoing() {
    }

    void clear() {
        data = null;
        at = 0;
        bytes = 0;
        holder = null;
    }

    void data(ByteBuffer buffer, int from, int length, Request request) {
        data = buffer;
        at = from;
        bytes = length;
        holder = request;
        request.holders++;
    }

    Request takeHolder() {
        Request request = holder;
        holder = null;
        return request;
    }

    /**
     * The request that owns the data.
     *
     * @return the request, until {@link InitiatorConnection#sent}; {@code null} without data
     */
    public Request request() {
        return holder;
    }

    /**
     * The buffer that holds the data segment; its position and limit are not used.
     *
     * @return the buffer, or {@code null} for none
     */
    public ByteBuffer data() {
        return data;
    }

    /**
     * Index of the first byte of the data segment in {@link #data}.
     *
     * @return the index
     */
    public int at() {
        return at;
    }

    /**
     * Length of the data segment, without padding.
     *
     * @return bytes
     */
    public int bytes() {
        return bytes;
    }
}

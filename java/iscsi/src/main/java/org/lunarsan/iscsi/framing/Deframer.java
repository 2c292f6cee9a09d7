package org.lunarsan.iscsi.framing;

import java.nio.ByteBuffer;
import java.util.zip.CRC32C;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Finds PDUs in a stream of bytes. RFC 7143 §11.2.
 *
 * <p>The caller passes bytes to {@link #next}, which returns an event. The deframer holds no
 * payload: after {@link Event#PAYLOAD} the caller chooses the destination, by {@link #take},
 * {@link #discard}, or by receiving the bytes straight into their place and then calling
 * {@link #received}. It keeps one header, at most {@link #HEADER_SEGMENTS_BYTES_MAX} bytes and its
 * digest. It allocates nothing.
 *
 * <p>Threads: confined to the reader of one connection.
 */
public final class Deframer {
    /** The Basic Header Segment and the longest Additional Header Segments. RFC 7143 §11.2.1.5. */
    public static final int HEADER_SEGMENTS_BYTES_MAX = BasicHeader.HEADER_BYTES + 255 * 4;

    private final CRC32C crc = new CRC32C();
    private final ByteBuffer head =
            ByteBuffer.allocate(HEADER_SEGMENTS_BYTES_MAX + Digests.DIGEST_BYTES);
    private final ByteBuffer header = head.duplicate();
    private final ByteBuffer tail = ByteBuffer.allocate(Framer.TAIL_BYTES_MAX);
    private Digests digests = Digests.NONE;
    private int dataSegmentBytesMax = BasicHeader.DATA_SEGMENT_BYTES_MAX;
    private State state = State.HEAD;
    private int missingBytes;
    /** Set when some bytes of the current payload cannot be read any more. */
    private boolean unread;

    /** An element found in the stream. */
    public enum Event {
        /** All bytes are consumed, and more are needed. */
        NEED_MORE,
        /**
         * A header is in {@link #header}; its digest matched, if there is one. With
         * DataSegmentLength 0 that is the whole PDU, else a payload follows.
         */
        HEADER,
        /**
         * A header digest did not match. The start of the next PDU is unknown: all further input is
         * consumed silently. RFC 7143 §7.8.
         */
        HEADER_DIGEST_ERROR,
        /** DataSegmentLength is above the limit; all further input is consumed silently. */
        TOO_LONG,
        /** The next bytes are payload, at most {@link #payloadMissing}. */
        PAYLOAD,
        /** The payload is complete, its padding and digest are consumed. */
        PAYLOAD_END,
        /** Like {@link #PAYLOAD_END}, but the data digest did not match. */
        PAYLOAD_DIGEST_ERROR
    }

    private enum State { HEAD, PAYLOAD, TAIL, LOST }

    /**
     * Creates a deframer at the start of a PDU, without digests, for data segments of any length.
     */
    public Deframer() {
        header.limit(0);
    }

    /**
     * Sets the parameters from the next PDU. Call it between two PDUs.
     *
     * @param digests the digests after headers and payloads
     * @param dataSegmentBytesMax our MaxRecvDataSegmentLength; 8192 during login
     */
    public void expect(Digests digests, int dataSegmentBytesMax) {
        this.digests = digests;
        this.dataSegmentBytesMax = dataSegmentBytesMax;
    }

    /**
     * Processes unconsumed bytes. Call it until it returns {@link Event#NEED_MORE}.
     *
     * @param input its position moves past the consumed bytes
     * @return the event
     */
    public Event next(ByteBuffer input) {
        return switch (state) {
            case HEAD -> nextHead(input);
            case PAYLOAD -> input.hasRemaining() ? Event.PAYLOAD : Event.NEED_MORE;
            case TAIL -> nextTail(input);
            case LOST -> {
                input.position(input.limit());
                yield Event.NEED_MORE;
            }
        };
    }

    /**
     * The last header: the Basic Header Segment, followed by all Additional Header Segments. Valid
     * until the first byte of the next one.
     *
     * @return a view from 0 to the end of the segments
     */
    public ByteBuffer header() {
        return header;
    }

    /**
     * Number of missing bytes of the current payload; 0 outside of one.
     *
     * @return bytes
     */
    public int payloadMissing() {
        return state == State.PAYLOAD ? missingBytes : 0;
    }

    /**
     * Copies payload from the input to its destination, limited by the missing bytes, the input and
     * the destination.
     *
     * @param input its position moves past the consumed bytes
     * @param destination its position moves past the written bytes
     * @return number of bytes
     */
    public int take(ByteBuffer input, ByteBuffer destination) {
        int bytes = Math.min(
                Math.min(payloadMissing(), input.remaining()), destination.remaining());
        destination.put(destination.position(), input, input.position(), bytes);
        destination.position(destination.position() + bytes);
        pass(input, bytes);
        return bytes;
    }

    /**
     * Discards payload; its digest is still checked.
     *
     * @param input its position moves past the consumed bytes
     * @return number of bytes
     */
    public int discard(ByteBuffer input) {
        int bytes = Math.min(payloadMissing(), input.remaining());
        pass(input, bytes);
        return bytes;
    }

    /**
     * Notes payload that was received straight into its destination instead of through
     * {@link #next}.
     *
     * @param destination holds it
     * @param at index of its first byte
     * @param bytes its length, at most {@link #payloadMissing}
     * @throws IllegalArgumentException when it is longer
     */
    public void received(ByteBuffer destination, int at, int bytes) {
        requireMissing(bytes);
        int position = destination.position();
        int limit = destination.limit();
        destination.limit(at + bytes).position(at);
        pass(destination, bytes);
        destination.limit(limit).position(position);
    }

    /**
     * Notes payload that was received, instead of through {@link #next}, into a place that cannot
     * be read any more: the digest of this data segment is not checked, and its bytes are unusable.
     *
     * @param bytes its length, at most {@link #payloadMissing}
     * @throws IllegalArgumentException when it is longer
     */
    public void receivedUnread(int bytes) {
        requireMissing(bytes);
        unread = true;
        consume(bytes);
    }

    private void requireMissing(int bytes) {
        if (bytes > payloadMissing()) {
            throw new IllegalArgumentException(
                    bytes + " bytes of payload where " + payloadMissing() + " are missing");
        }
    }

    /**
     * True if no PDU is incomplete: the stream may end here without loss.
     *
     * @return whether it is so
     */
    public boolean isBetweenPdus() {
        return state == State.HEAD && head.position() == 0;
    }

    private Event nextHead(ByteBuffer input) {
        fill(head, input, BasicHeader.HEADER_BYTES);
        if (head.position() < BasicHeader.HEADER_BYTES) {
            return Event.NEED_MORE;
        }
        int segments = BasicHeader.HEADER_BYTES + 4 * BasicHeader.totalAhsWords(head, 0);
        int whole = segments + (digests.header() ? Digests.DIGEST_BYTES : 0);
        fill(head, input, whole);
        return head.position() < whole ? Event.NEED_MORE : endHead(segments);
    }

    private Event endHead(int segments) {
        head.position(0);
        header.limit(segments).position(0);
        if (digests.header()) {
            crc.reset();
            crc.update(head.array(), 0, segments);
            if (Fields.i32(head, segments) != Digests.wireOrder(crc.getValue())) {
                state = State.LOST;
                return Event.HEADER_DIGEST_ERROR;
            }
        }
        missingBytes = BasicHeader.dataSegmentLength(head, 0);
        if (missingBytes > dataSegmentBytesMax) {
            state = State.LOST;
            return Event.TOO_LONG;
        }
        if (missingBytes > 0) {
            state = State.PAYLOAD;
            unread = false;
            crc.reset();
        }
        return Event.HEADER;
    }

    /** Consumes payload that is at its destination. */
    private void pass(ByteBuffer payload, int bytes) {
        if (bytes == 0) {
            return;
        }
        if (digests.data()) {
            int limit = payload.limit();
            payload.limit(payload.position() + bytes);
            crc.update(payload);
            payload.limit(limit);
        } else {
            payload.position(payload.position() + bytes);
        }
        consume(bytes);
    }

    private void consume(int bytes) {
        missingBytes -= bytes;
        if (missingBytes == 0) {
            state = State.TAIL;
            tail.clear();
        }
    }

    private Event nextTail(ByteBuffer input) {
        int padding = Digests.paddingBytes(BasicHeader.dataSegmentLength(head, 0));
        int whole = padding + (digests.data() ? Digests.DIGEST_BYTES : 0);
        fill(tail, input, whole);
        if (tail.position() < whole) {
            return Event.NEED_MORE;
        }
        state = State.HEAD;
        if (!digests.data() || unread) {
            return Event.PAYLOAD_END;
        }
        crc.update(tail.array(), 0, padding);
        boolean right = Fields.i32(tail, padding) == Digests.wireOrder(crc.getValue());
        return right ? Event.PAYLOAD_END : Event.PAYLOAD_DIGEST_ERROR;
    }

    /** Copies bytes until the buffer holds {@code wanted}. */
    private static void fill(ByteBuffer buffer, ByteBuffer input, int wanted) {
        int bytes = Math.min(Math.max(wanted - buffer.position(), 0), input.remaining());
        buffer.put(buffer.position(), input, input.position(), bytes);
        buffer.position(buffer.position() + bytes);
        input.position(input.position() + bytes);
    }
}

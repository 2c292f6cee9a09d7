package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * A PDU with an opcode that RFC 7143 §11.2.1.2 does not define; kept as received.
 *
 * <p>Threads: immutable.
 */
public final class UnknownPdu implements Pdu {
    private final ByteBuffer header;

    private UnknownPdu(byte[] header) {
        this.header = ByteBuffer.wrap(header);
    }

    /**
     * Decodes the 48 bytes from the position of a buffer.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the header
     */
    public static UnknownPdu decode(ByteBuffer header) {
        byte[] bytes = new byte[BasicHeader.HEADER_BYTES];
        header.get(bytes);
        return new UnknownPdu(bytes);
    }

    @Override
    public int first() {
        return BasicHeader.first(header, 0);
    }

    @Override
    public int flags() {
        return BasicHeader.flags(header, 0);
    }

    @Override
    public int totalAhsWords() {
        return BasicHeader.totalAhsWords(header, 0);
    }

    @Override
    public int dataSegmentLength() {
        return BasicHeader.dataSegmentLength(header, 0);
    }

    @Override
    public int initiatorTaskTag() {
        return BasicHeader.initiatorTaskTag(header, 0);
    }

    @Override
    public void encode(ByteBuffer out) {
        out.put(header.array());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof UnknownPdu pdu
                && Arrays.equals(header.array(), pdu.header.array());
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(header.array());
    }

    @Override
    public String toString() {
        return "UnknownPdu" + Arrays.toString(header.array());
    }
}

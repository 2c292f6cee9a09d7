package org.lunarsan.iscsi.connection;

import org.lunarsan.iscsi.pdu.Opcode;

/**
 * A protocol violation by the target. At ErrorRecoveryLevel 0 each one ends the connection, which
 * is the session recovery of RFC 7143 §7.1.4.4.
 *
 * <p>Threads: immutable.
 */
public sealed interface Violation {
    /**
     * Describes the violation.
     *
     * @return the description, for messages
     */
    String describe();

    /**
     * A field of a PDU has an invalid value.
     *
     * @param opcode of the PDU
     * @param what the error
     */
    record Malformed(int opcode, String what) implements Violation {
        @Override
        public String describe() {
            return "malformed " + Opcode.name(opcode) + ": " + what;
        }
    }

    /**
     * A PDU that is not allowed in full feature phase.
     *
     * @param opcode of the PDU
     */
    record Misplaced(int opcode) implements Violation {
        @Override
        public String describe() {
            return Opcode.name(opcode) + " is not allowed in full feature phase";
        }
    }

    /** A header did not match its digest. RFC 7143 §7.8. */
    record HeaderDigest() implements Violation {
        @Override
        public String describe() {
            return "a header digest does not match";
        }
    }

    /**
     * A data segment did not match its digest. RFC 7143 §7.8.
     *
     * @param opcode of the PDU
     */
    record DataDigest(int opcode) implements Violation {
        @Override
        public String describe() {
            return "the data digest of " + Opcode.name(opcode) + " does not match";
        }
    }

    /**
     * A data segment is longer than our MaxRecvDataSegmentLength.
     *
     * @param opcode of the PDU
     * @param bytes DataSegmentLength
     * @param bytesMax the declared length
     */
    record TooLong(int opcode, int bytes, int bytesMax) implements Violation {
        @Override
        public String describe() {
            return "%s has %d bytes of data, more than the declared maximum of %d"
                    .formatted(Opcode.name(opcode), bytes, bytesMax);
        }
    }

    /**
     * StatSN skips or repeats: a response was lost. RFC 7143 §4.2.2.2.
     *
     * @param got the received number
     * @param expected the expected number
     */
    record StatSn(int got, int expected) implements Violation {
        @Override
        public String describe() {
            return "StatSN %s instead of %s".formatted(Integer.toUnsignedString(got),
                    Integer.toUnsignedString(expected));
        }
    }

    /**
     * DataSN or R2TSN skips or repeats. RFC 7143 §4.2.2.4.
     *
     * @param opcode of the PDU
     * @param got the received number
     * @param expected the expected number
     */
    record DataSn(int opcode, int got, int expected) implements Violation {
        @Override
        public String describe() {
            return "%s has number %s instead of %s".formatted(Opcode.name(opcode),
                    Integer.toUnsignedString(got), Integer.toUnsignedString(expected));
        }
    }

    /**
     * An Initiator Task Tag of no pending request, or of another kind of request.
     *
     * @param opcode of the PDU
     * @param tag the tag
     */
    record UnknownTag(int opcode, int tag) implements Violation {
        @Override
        public String describe() {
            return "%s has the Initiator Task Tag 0x%x, which belongs to no matching request"
                    .formatted(Opcode.name(opcode), tag);
        }
    }

    /**
     * A command ended GOOD although data is missing.
     *
     * @param got bytes that arrived
     * @param expected bytes that should have arrived according to the residual
     */
    record MissingData(int got, int expected) implements Violation {
        @Override
        public String describe() {
            return "status GOOD after only %d of %d bytes".formatted(got, expected);
        }
    }

    /**
     * A text answer beyond the limit.
     *
     * @param bytesMax the limit
     */
    record TextTooLong(int bytesMax) implements Violation {
        @Override
        public String describe() {
            return "a text response is longer than " + bytesMax + " bytes";
        }
    }
}

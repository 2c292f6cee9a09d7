package org.lunarsan.iscsi.pdu;

import java.nio.ByteBuffer;

/**
 * The Basic Header Segment of any PDU, as a value. RFC 7143 §11.2.1.
 *
 * <p>Threads: immutable.
 */
public sealed interface Pdu permits InitiatorPdu, TargetPdu, UnknownPdu {
    /**
     * Byte 0: the I bit and the opcode.
     *
     * @return 0 to 255
     */
    int first();

    /**
     * Byte 1.
     *
     * @return 0 to 255
     */
    int flags();

    /**
     * TotalAHSLength.
     *
     * @return words of four bytes, 0 to 255
     */
    int totalAhsWords();

    /**
     * DataSegmentLength.
     *
     * @return bytes, without padding, 0 to 2^24 - 1
     */
    int dataSegmentLength();

    /**
     * Initiator Task Tag.
     *
     * @return the tag
     */
    int initiatorTaskTag();

    /**
     * Encodes 48 bytes at the position of a buffer. Reserved fields are zero.
     *
     * @param out has at least 48 bytes left; its position moves past them
     */
    void encode(ByteBuffer out);

    /**
     * The opcode.
     *
     * @return see {@link Opcode}
     */
    default int opcode() {
        return first() & BasicHeader.OPCODE_MASK;
    }

    /**
     * The I bit.
     *
     * @return whether immediate delivery is requested
     */
    default boolean isImmediate() {
        return (first() & Opcode.IMMEDIATE) != 0;
    }

    /**
     * Decodes the 48 bytes from the position of a buffer as the PDU of its opcode. Accepts any
     * bytes; the state machine interprets their meaning.
     *
     * @param header at least 48 bytes; its position moves past them
     * @return the fields
     */
    static Pdu decode(ByteBuffer header) {
        return switch (BasicHeader.opcode(header, header.position())) {
            case Opcode.NOP_OUT -> NopOut.decode(header);
            case Opcode.NOP_IN -> NopIn.decode(header);
            case Opcode.SCSI_COMMAND -> ScsiCommand.decode(header);
            case Opcode.SCSI_RESPONSE -> ScsiResponse.decode(header);
            case Opcode.TASK_MANAGEMENT_REQUEST -> TaskManagementRequest.decode(header);
            case Opcode.TASK_MANAGEMENT_RESPONSE -> TaskManagementResponse.decode(header);
            case Opcode.LOGIN_REQUEST -> LoginRequest.decode(header);
            case Opcode.LOGIN_RESPONSE -> LoginResponse.decode(header);
            case Opcode.TEXT_REQUEST -> TextRequest.decode(header);
            case Opcode.TEXT_RESPONSE -> TextResponse.decode(header);
            case Opcode.DATA_OUT -> DataOut.decode(header);
            case Opcode.DATA_IN -> DataIn.decode(header);
            case Opcode.READY_TO_TRANSFER -> ReadyToTransfer.decode(header);
            case Opcode.LOGOUT_REQUEST -> LogoutRequest.decode(header);
            case Opcode.LOGOUT_RESPONSE -> LogoutResponse.decode(header);
            case Opcode.SNACK_REQUEST -> SnackRequest.decode(header);
            case Opcode.ASYNC_MESSAGE -> AsyncMessage.decode(header);
            case Opcode.REJECT -> Reject.decode(header);
            default -> UnknownPdu.decode(header);
        };
    }
}

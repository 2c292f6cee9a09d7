package org.lunarsan.iscsi.pdu;

/**
 * A PDU from the initiator. Sealed: a {@code switch} has to handle every kind.
 *
 * <p>Threads: immutable.
 */
public sealed interface InitiatorPdu extends Pdu permits NopOut, ScsiCommand, TaskManagementRequest,
        LoginRequest, TextRequest, DataOut, LogoutRequest, SnackRequest {
}

package org.lunarsan.iscsi.pdu;

/**
 * A PDU from the initiator. Sealed: a {@code switch} that forgets a kind does not compile.
 *
 * <p>Threads: immutable.
 */
public sealed interface InitiatorPdu extends Pdu permits NopOut, ScsiCommand, TaskManagementRequest,
        LoginRequest, TextRequest, DataOut, LogoutRequest, SnackRequest {
}

package org.lunarsan.iscsi.pdu;

/**
 * A PDU from the target. Sealed: a {@code switch} has to handle every kind.
 *
 * <p>Threads: immutable.
 */
public sealed interface TargetPdu extends Pdu permits NopIn, ScsiResponse, TaskManagementResponse,
        LoginResponse, TextResponse, DataIn, ReadyToTransfer, LogoutResponse, AsyncMessage, Reject {
}

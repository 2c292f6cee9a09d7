//! Invariants of every PDU that a target sends; the rig checks each PDU in all tests.

use crate::framing::Pdu;
use crate::pdu::{
    AsyncMessage, DataIn, DataInFlags, HEADER_BYTES, LoginFlags, LoginResponse, NopIn, Opcode,
    ReadyToTransfer, Reject, ResponseFlags, ScsiResponse, ServiceResponse, TAG_RESERVED, TextFlags,
    TextResponse,
};

pub(super) fn check(pdu: &Pdu) {
    match pdu.opcode() {
        Opcode::SCSI_RESPONSE => check_response(pdu),
        Opcode::DATA_IN => check_data_in(&DataIn::decode(&pdu.bhs)),
        Opcode::READY_TO_TRANSFER => {
            let r2t = ReadyToTransfer::decode(&pdu.bhs);
            assert!(r2t.desired_length_bytes > 0 && pdu.data.is_empty());
            assert_ne!(r2t.target_transfer_tag, TAG_RESERVED);
        }
        Opcode::REJECT => {
            let reject = Reject::decode(&pdu.bhs);
            // RFC 7143 §11.17.1: 0Bh "MUST NOT be used".
            assert!(reject.reason.0 != 0x0b && reject.reason.name().is_some(), "{reject:?}");
            assert_eq!(reject.initiator_task_tag, TAG_RESERVED);
            assert!(pdu.data.len() >= HEADER_BYTES, "the Reject contains the refused header");
        }
        Opcode::NOP_IN => {
            let nop = NopIn::decode(&pdu.bhs);
            let is_answer = nop.initiator_task_tag != TAG_RESERVED;
            assert!(is_answer || pdu.data.is_empty(), "only an answer has data, §11.19");
            assert!(!is_answer || nop.target_transfer_tag == TAG_RESERVED);
        }
        Opcode::TEXT_RESPONSE => {
            let text = TextResponse::decode(&pdu.bhs);
            let (last, more) = (TextFlags::FINAL, TextFlags::CONTINUE);
            assert!(!(text.flags.has(last) && text.flags.has(more)));
            assert_eq!(text.flags.has(last), text.target_transfer_tag == TAG_RESERVED);
        }
        Opcode::LOGIN_RESPONSE => {
            let login = LoginResponse::decode(&pdu.bhs);
            let (transit, more) = (LoginFlags::TRANSIT, LoginFlags::CONTINUE);
            assert!(!(login.flags.has(transit) && login.flags.has(more)));
        }
        Opcode::ASYNC_MESSAGE => {
            assert_eq!(AsyncMessage::decode(&pdu.bhs).initiator_task_tag, TAG_RESERVED);
        }
        Opcode::TASK_MANAGEMENT_RESPONSE | Opcode::LOGOUT_RESPONSE => {
            assert!(pdu.data.is_empty());
        }
        opcode => panic!("{opcode:?} is not for a target to send"),
    }
}

/// Checks a SCSI Response. RFC 7143 §11.4: exclusive flags, a status only with "command completed",
/// sense data behind its length.
fn check_response(pdu: &Pdu) {
    let response = ScsiResponse::decode(&pdu.bhs);
    let (flags, has) = (response.flags, |flag| response.flags.has(flag));
    assert!(!(has(ResponseFlags::OVERFLOW) && has(ResponseFlags::UNDERFLOW)), "{flags:?}");
    let both = has(ResponseFlags::BIDI_READ_OVERFLOW) && has(ResponseFlags::BIDI_READ_UNDERFLOW);
    assert!(!both, "{flags:?}");
    let counted = has(ResponseFlags::OVERFLOW) || has(ResponseFlags::UNDERFLOW);
    assert!(counted || response.residual_bytes == 0);
    assert!(response.response == ServiceResponse::COMMAND_COMPLETED || response.status == 0);
    if let [high, low, sense @ ..] = &pdu.data[..] {
        assert_eq!(usize::from(u16::from_be_bytes([*high, *low])), sense.len(), "SenseLength");
        assert!(!sense.is_empty());
    } else {
        assert!(pdu.data.is_empty());
    }
}

/// Checks a Data-In. RFC 7143 §11.7.3: S needs F and no sense; without S there is neither status
/// nor residual.
fn check_data_in(data_in: &DataIn) {
    let flags = data_in.flags;
    let (over, under) = (flags.has(DataInFlags::OVERFLOW), flags.has(DataInFlags::UNDERFLOW));
    assert!(!(over && under));
    if flags.has(DataInFlags::STATUS) {
        assert!(flags.has(DataInFlags::FINAL) && data_in.status != 0x02, "{data_in:?}");
    } else {
        assert!(!over && !under && data_in.status == 0 && data_in.residual_bytes == 0);
    }
}

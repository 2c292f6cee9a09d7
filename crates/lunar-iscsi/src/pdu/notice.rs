//! Asynchronous Message, Reject, NOP-Out and NOP-In. RFC 7143 §11.9, §11.17, §11.18, §11.19.

use super::{FinalFlag, FirstByte};
use lunar_wire::{Lun, SerialNumber, U24};

lunar_wire::wire_enum! {
    /// Events that the target reports by Asynchronous Messages. RFC 7143 §11.9.1.
    pub struct AsyncEvent(u8) {
        SCSI_EVENT = 0, LOGOUT_REQUESTED = 1, CONNECTION_WILL_DROP = 2, SESSION_WILL_DROP = 3,
        RENEGOTIATE = 4, TASKS_TERMINATED = 5, VENDOR = 255,
    }
}

lunar_wire::wire_struct! {
    /// Asynchronous Message. RFC 7143 §11.9.
    pub struct AsyncMessage [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => event: AsyncEvent,
        37 => vendor_code: u8,
        38 => parameter_1: u16,
        40 => parameter_2: u16,
        42 => parameter_3: u16,
    }
}

lunar_wire::wire_enum! {
    /// The reason why a PDU was refused. RFC 7143 §11.17.1.
    pub struct RejectReason(u8) {
        DATA_DIGEST_ERROR = 0x02, SNACK_REJECT = 0x03, PROTOCOL_ERROR = 0x04,
        COMMAND_NOT_SUPPORTED = 0x05, IMMEDIATE_COMMAND_REJECT = 0x06, TASK_IN_PROGRESS = 0x07,
        INVALID_DATA_ACK = 0x08, INVALID_PDU_FIELD = 0x09, LONG_OPERATION_REJECT = 0x0a,
        WAITING_FOR_LOGOUT = 0x0c,
    }
}

lunar_wire::wire_struct! {
    /// Reports a refused PDU; its header is in the data segment. RFC 7143 §11.17.
    pub struct Reject [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        2 => reason: RejectReason,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => data_sn: u32,
    }
}

lunar_wire::wire_struct! {
    /// A ping, or the answer to one. RFC 7143 §11.18.
    pub struct NopOut [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
    }
}

lunar_wire::wire_struct! {
    /// The answer to a ping, or a ping. RFC 7143 §11.19.
    pub struct NopIn [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
    }
}

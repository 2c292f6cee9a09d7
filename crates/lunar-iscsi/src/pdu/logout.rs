//! Logout Request and Response. RFC 7143 §11.14, §11.15.

use super::{FinalFlag, FirstByte};
use lunar_wire::{SerialNumber, U24};

lunar_wire::wire_enum! {
    /// Scope of a logout. RFC 7143 §11.14.1; on the wire bit 7 of the byte is set as well.
    pub struct LogoutReason(u8) {
        CLOSE_SESSION = 0, CLOSE_CONNECTION = 1, REMOVE_FOR_RECOVERY = 2,
    }
}

lunar_wire::wire_struct! {
    /// A Logout Request. RFC 7143 §11.14.
    pub struct LogoutRequest [48] {
        0 => first: FirstByte,
        /// Bit 7 set, and the [`LogoutReason`] in the other seven.
        1 => flags_and_reason: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        16 => initiator_task_tag: u32,
        20 => cid: u16,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
    }
}

impl LogoutRequest {
    /// The scope of the logout.
    pub const fn reason(&self) -> LogoutReason {
        LogoutReason(self.flags_and_reason & 0x7f)
    }
}

lunar_wire::wire_enum! {
    /// The result of a logout. RFC 7143 §11.15.1.
    pub struct LogoutResult(u8) {
        CLOSED = 0, CID_NOT_FOUND = 1, RECOVERY_NOT_SUPPORTED = 2, CLEANUP_FAILED = 3,
    }
}

lunar_wire::wire_struct! {
    /// A Logout Response. RFC 7143 §11.15.
    pub struct LogoutResponse [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        2 => response: LogoutResult,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        40 => time_to_wait_seconds: u16,
        42 => time_to_retain_seconds: u16,
    }
}

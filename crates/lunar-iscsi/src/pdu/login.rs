//! Login Request and Response. RFC 7143 §11.12, §11.13.

use super::FirstByte;
use lunar_wire::{SerialNumber, U24};

lunar_wire::wire_flags! {
    /// Byte 1: T and C; CSG and NSG are read by [`current`](Self::current) and
    /// [`next`](Self::next).
    pub struct LoginFlags(u8) { TRANSIT = 0x80, CONTINUE = 0x40 }
}

impl LoginFlags {
    /// Flags of a PDU in stage `current`; with `next`, it requests (or grants) the transit there.
    pub const fn stage(current: Stage, next: Option<Stage>) -> Self {
        match next {
            Some(next) => Self(Self::TRANSIT.0 | current.0 << 2 | next.0),
            None => Self(current.0 << 2),
        }
    }

    /// CSG, the current stage. RFC 7143 §11.12.3.
    pub const fn current(self) -> Stage {
        Stage(self.0 >> 2 & 0x03)
    }

    /// NSG, the next stage; has a meaning only with T.
    pub const fn next(self) -> Stage {
        Stage(self.0 & 0x03)
    }
}

lunar_wire::wire_enum! {
    /// A stage of the login. RFC 7143 §11.12.3; 2 does not exist.
    pub struct Stage(u8) {
        SECURITY_NEGOTIATION = 0, OPERATIONAL_NEGOTIATION = 1, FULL_FEATURE_PHASE = 3,
    }
}

lunar_wire::wire_struct! {
    /// A Login Request. RFC 7143 §11.12. Always immediate.
    pub struct LoginRequest [48] {
        0 => first: FirstByte,
        1 => flags: LoginFlags,
        2 => version_max: u8,
        3 => version_min: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => isid: [u8; 6],
        14 => tsih: u16,
        16 => initiator_task_tag: u32,
        20 => cid: u16,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
    }
}

lunar_wire::wire_enum! {
    /// Status-Class and Status-Detail as one number. RFC 7143 §11.13.5.
    pub struct LoginStatus(u16) {
        SUCCESS = 0x0000,
        TARGET_MOVED_TEMPORARILY = 0x0101,
        TARGET_MOVED_PERMANENTLY = 0x0102,
        INITIATOR_ERROR = 0x0200,
        AUTHENTICATION_FAILURE = 0x0201,
        AUTHORIZATION_FAILURE = 0x0202,
        NOT_FOUND = 0x0203,
        TARGET_REMOVED = 0x0204,
        UNSUPPORTED_VERSION = 0x0205,
        TOO_MANY_CONNECTIONS = 0x0206,
        MISSING_PARAMETER = 0x0207,
        CANT_INCLUDE_IN_SESSION = 0x0208,
        SESSION_TYPE_NOT_SUPPORTED = 0x0209,
        SESSION_DOES_NOT_EXIST = 0x020a,
        INVALID_DURING_LOGIN = 0x020b,
        TARGET_ERROR = 0x0300,
        SERVICE_UNAVAILABLE = 0x0301,
        OUT_OF_RESOURCES = 0x0302,
    }
}

lunar_wire::wire_struct! {
    /// A Login Response. RFC 7143 §11.13.
    pub struct LoginResponse [48] {
        0 => first: FirstByte,
        1 => flags: LoginFlags,
        2 => version_max: u8,
        3 => version_active: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => isid: [u8; 6],
        14 => tsih: u16,
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => status: LoginStatus,
    }
}

//! Every PDU of RFC 7143 §11 as a table: only encoding and decoding.
//!
//! Each file holds a pair of PDUs. Decoding never fails; [`login`](crate::login) and
//! [`connection`](crate::connection) check what a value means in each state.

mod data;
mod login;
mod logout;
mod notice;
mod opcode;
mod scsi;
mod task_management;
mod text;

pub use data::{DataIn, DataInFlags, DataOut, ReadyToTransfer, SnackFlags, SnackRequest};
pub use login::{LoginFlags, LoginRequest, LoginResponse, LoginStatus, Stage};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult};
pub use notice::{AsyncEvent, AsyncMessage, NopIn, NopOut, Reject, RejectReason};
pub use opcode::{FirstByte, Opcode};
pub use scsi::{
    CommandFlags, ResponseFlags, ScsiCommand, ScsiResponse, ServiceResponse, TaskAttribute,
};
pub use task_management::{
    FunctionInfo, MANAGEMENT_FUNCTIONS, ManagementFunction, ManagementResponse,
    TaskManagementRequest, TaskManagementResponse, management_markdown,
};
pub use text::{TextFlags, TextRequest, TextResponse};

/// Length of a Basic Header Segment. RFC 7143 §11.2.1.
pub const HEADER_BYTES: usize = 48;

/// The reserved Initiator Task Tag and Target Transfer Tag. RFC 7143 §11.2.1.8.
pub const TAG_RESERVED: u32 = 0xffff_ffff;

lunar_wire::wire_flags! {
    /// Byte 1 of PDUs in which only the F bit has a meaning.
    pub struct FinalFlag(u8) { FINAL = 0x80 }
}

lunar_wire::wire_struct! {
    /// Fields of all Basic Header Segments. RFC 7143 §11.2.1.
    pub struct BasicHeader [48] {
        0 => first: FirstByte,
        1 => flags: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: lunar_wire::U24,
        8 => lun: lunar_wire::Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
    }
}

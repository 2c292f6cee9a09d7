//! Task Management Function Request and Response. RFC 7143 §11.5, §11.6.

use super::{FinalFlag, FirstByte};
use wire::{Lun, SerialNumber, U24};

wire::wire_enum! {
    /// What to do. RFC 7143 §11.5.1; on the wire bit 7 of the byte is set as well.
    pub struct ManagementFunction(u8) {
        ABORT_TASK = 1, ABORT_TASK_SET = 2, CLEAR_ACA = 3, CLEAR_TASK_SET = 4,
        LOGICAL_UNIT_RESET = 5, TARGET_WARM_RESET = 6, TARGET_COLD_RESET = 7, TASK_REASSIGN = 8,
    }
}

wire::wire_struct! {
    /// Control over tasks. RFC 7143 §11.5.
    pub struct TaskManagementRequest [48] {
        0 => first: FirstByte,
        /// Bit 7 set, and the [`ManagementFunction`] in the other seven.
        1 => flags_and_function: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => referenced_task_tag: u32,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
        32 => ref_cmd_sn: SerialNumber,
        36 => exp_data_sn: u32,
    }
}

impl TaskManagementRequest {
    /// The function asked for.
    pub const fn function(&self) -> ManagementFunction {
        ManagementFunction(self.flags_and_function & 0x7f)
    }
}

wire::wire_enum! {
    /// How it ended. RFC 7143 §11.6.1.
    pub struct ManagementResponse(u8) {
        FUNCTION_COMPLETE = 0, TASK_DOES_NOT_EXIST = 1, LUN_DOES_NOT_EXIST = 2,
        TASK_STILL_ALLEGIANT = 3, REASSIGNMENT_NOT_SUPPORTED = 4, FUNCTION_NOT_SUPPORTED = 5,
        AUTHORIZATION_FAILED = 6, FUNCTION_REJECTED = 255,
    }
}

wire::wire_struct! {
    /// The end of a task management function. RFC 7143 §11.6.
    pub struct TaskManagementResponse [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        2 => response: ManagementResponse,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
    }
}

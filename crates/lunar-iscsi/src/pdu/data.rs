//! Data-Out, Data-In, Ready To Transfer and SNACK. RFC 7143 §11.7, §11.8, §11.16.

use super::{FinalFlag, FirstByte};
use lunar_wire::{Lun, SerialNumber, U24};

lunar_wire::wire_struct! {
    /// Data from the initiator. RFC 7143 §11.7.
    pub struct DataOut [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
        28 => exp_stat_sn: SerialNumber,
        36 => data_sn: u32,
        40 => buffer_offset_bytes: u32,
    }
}

lunar_wire::wire_flags! {
    /// Byte 1 of a Data-In. RFC 7143 §11.7: F, A, O, U, S.
    pub struct DataInFlags(u8) {
        FINAL = 0x80, ACKNOWLEDGE = 0x40, OVERFLOW = 0x04, UNDERFLOW = 0x02, STATUS = 0x01,
    }
}

lunar_wire::wire_struct! {
    /// Data to the initiator, optionally with the status of the command. RFC 7143 §11.7.
    pub struct DataIn [48] {
        0 => first: FirstByte,
        1 => flags: DataInFlags,
        3 => status: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => data_sn: u32,
        40 => buffer_offset_bytes: u32,
        44 => residual_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// The target requests one contiguous piece of a write's data. RFC 7143 §11.8.
    pub struct ReadyToTransfer [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        /// Never the reserved tag, §11.8.5.
        20 => target_transfer_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => r2t_sn: u32,
        40 => buffer_offset_bytes: u32,
        /// 1 to MaxBurstLength, §11.8.4.
        44 => desired_length_bytes: u32,
    }
}

lunar_wire::wire_flags! {
    /// Byte 1 of a SNACK: bit 7, and the type in the low four bits. RFC 7143 §11.16.1.
    pub struct SnackFlags(u8) {
        FINAL = 0x80, DATA_OR_R2T = 0x00, STATUS = 0x01, DATA_ACK = 0x02, RESEGMENTED_DATA = 0x03,
    }
}

lunar_wire::wire_struct! {
    /// Selective negative acknowledgement. RFC 7143 §11.16.
    pub struct SnackRequest [48] {
        0 => first: FirstByte,
        1 => flags: SnackFlags,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => target_transfer_tag: u32,
        28 => exp_stat_sn: SerialNumber,
        40 => first_missing: u32,
        44 => run_length: u32,
    }
}

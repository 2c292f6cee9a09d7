//! Text Request and Response. RFC 7143 §11.10, §11.11.

use super::FirstByte;
use lunar_wire::{Lun, SerialNumber, U24};

lunar_wire::wire_flags! {
    /// Byte 1: F, and C if the text continues in the next PDU. RFC 7143 §11.10.1, §11.10.2.
    pub struct TextFlags(u8) { FINAL = 0x80, CONTINUE = 0x40 }
}

lunar_wire::wire_struct! {
    /// Text from the initiator. RFC 7143 §11.10.
    pub struct TextRequest [48] {
        0 => first: FirstByte,
        1 => flags: TextFlags,
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
    /// Text from the target. RFC 7143 §11.11.
    pub struct TextResponse [48] {
        0 => first: FirstByte,
        1 => flags: TextFlags,
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

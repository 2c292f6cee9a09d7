//! SCSI Command and SCSI Response. RFC 7143 §11.3, §11.4.

use super::FirstByte;
use lunar_wire::{Lun, SerialNumber, U24};

lunar_wire::wire_flags! {
    /// Byte 1 of a SCSI Command. RFC 7143 §11.3.1. The low three bits are the [`TaskAttribute`].
    pub struct CommandFlags(u8) { FINAL = 0x80, READ = 0x40, WRITE = 0x20 }
}

impl CommandFlags {
    /// The ATTR field.
    pub const fn attribute(self) -> TaskAttribute {
        TaskAttribute(self.0 & 0x07)
    }

    /// Returns the flags with this ATTR field.
    #[must_use]
    pub const fn with_attribute(self, attribute: TaskAttribute) -> Self {
        Self(self.0 & !0x07 | attribute.0 & 0x07)
    }
}

lunar_wire::wire_enum! {
    /// The order of a task among the others. RFC 7143 §11.3.1.
    pub struct TaskAttribute(u8) {
        UNTAGGED = 0, SIMPLE = 1, ORDERED = 2, HEAD_OF_QUEUE = 3, ACA = 4,
    }
}

lunar_wire::wire_struct! {
    /// A SCSI command, optionally with immediate data. RFC 7143 §11.3.
    pub struct ScsiCommand [48] {
        0 => first: FirstByte,
        1 => flags: CommandFlags,
        /// Command priority in the high four bits, RFC 7144 §5.1; zero below protocol level 2.
        2 => priority: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => expected_data_transfer_length: u32,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
        /// The first 16 bytes; a longer CDB continues in an AHS, §11.2.2.3.
        32 => cdb: [u8; 16],
    }
}

lunar_wire::wire_flags! {
    /// Byte 1 of a SCSI Response. RFC 7143 §11.4.1. Bit 7 is always set.
    pub struct ResponseFlags(u8) {
        FINAL = 0x80,
        BIDI_READ_OVERFLOW = 0x10, BIDI_READ_UNDERFLOW = 0x08,
        OVERFLOW = 0x04, UNDERFLOW = 0x02,
    }
}

lunar_wire::wire_enum! {
    /// Service response: whether the command reached the target's SCSI layer. RFC 7143 §11.4.3.
    pub struct ServiceResponse(u8) { COMMAND_COMPLETED = 0x00, TARGET_FAILURE = 0x01 }
}

lunar_wire::wire_struct! {
    /// The end of a SCSI command. RFC 7143 §11.4.
    pub struct ScsiResponse [48] {
        0 => first: FirstByte,
        1 => flags: ResponseFlags,
        2 => response: ServiceResponse,
        3 => status: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        /// Status qualifier, RFC 7144 §5.2.1; zero below protocol level 2.
        8 => status_qualifier: u16,
        16 => initiator_task_tag: u32,
        20 => snack_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
        36 => exp_data_sn: u32,
        40 => bidi_read_residual_bytes: u32,
        44 => residual_bytes: u32,
    }
}

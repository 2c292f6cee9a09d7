//! Sense data: key, additional code, information. SPC-4 §4.5.

use alloc::vec::Vec;

wire::wire_enum! {
    /// Status byte. SAM-5 §5.3.1.
    pub struct Status(u8) {
        GOOD = 0x00, CHECK_CONDITION = 0x02, CONDITION_MET = 0x04, BUSY = 0x08,
        RESERVATION_CONFLICT = 0x18, TASK_SET_FULL = 0x28, ACA_ACTIVE = 0x30, TASK_ABORTED = 0x40,
    }
}

wire::wire_enum! {
    /// Sense key. SPC-4 §4.5.6.
    pub struct SenseKey(u8) {
        NO_SENSE = 0x0, RECOVERED_ERROR = 0x1, NOT_READY = 0x2, MEDIUM_ERROR = 0x3,
        HARDWARE_ERROR = 0x4, ILLEGAL_REQUEST = 0x5, UNIT_ATTENTION = 0x6, DATA_PROTECT = 0x7,
        BLANK_CHECK = 0x8, COPY_ABORTED = 0xa, ABORTED_COMMAND = 0xb, MISCOMPARE = 0xe,
    }
}

/// Why a command did not do what was asked; becomes fixed or descriptor format when encoded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier, as `0xAAQQ`.
    pub code: u16,
    /// INFORMATION: an LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// Sense-key specific field pointer: where in the CDB (or parameter list) the fault lies.
    pub field: Option<FieldPointer>,
}

/// Points at the byte (and bit) in error. SPC-4 §4.5.2.4.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FieldPointer {
    /// In the CDB; else in the data-out parameter list.
    pub in_cdb: bool,
    /// Byte offset.
    pub byte: u16,
    /// Most significant bit of the field, where one is meant.
    pub bit: Option<u8>,
}

/// Sense data as bytes, in the format the unit's control page asks for.
pub type SenseBytes = Vec<u8>;

//! The refusals commands share.

use crate::sense::{FieldPointer, Sense, SenseKey};

/// INVALID FIELD IN CDB, pointing at the byte and, if any, the field's most significant bit.
pub(crate) fn invalid_field(byte: u16, bit: Option<u8>) -> Sense {
    let field = Some(FieldPointer { in_cdb: true, byte, bit });
    Sense { field, ..plain(SenseKey::ILLEGAL_REQUEST, 0x2400) }
}

/// INVALID FIELD IN PARAMETER LIST, pointing at the byte.
pub(crate) fn invalid_parameter(byte: u16) -> Sense {
    let field = Some(FieldPointer { in_cdb: false, byte, bit: None });
    Sense { field, ..plain(SenseKey::ILLEGAL_REQUEST, 0x2600) }
}

/// PARAMETER LIST LENGTH ERROR.
pub(crate) fn parameter_list_length() -> Sense {
    plain(SenseKey::ILLEGAL_REQUEST, 0x1a00)
}

/// INVALID COMMAND OPERATION CODE.
pub(crate) fn invalid_opcode() -> Sense {
    let field = Some(FieldPointer { in_cdb: true, byte: 0, bit: None });
    Sense { field, ..plain(SenseKey::ILLEGAL_REQUEST, 0x2000) }
}

/// LOGICAL BLOCK ADDRESS OUT OF RANGE; the INFORMATION field holds the first such address.
pub(crate) fn out_of_range(lba: u64) -> Sense {
    Sense { information: Some(lba), ..plain(SenseKey::ILLEGAL_REQUEST, 0x2100) }
}

/// LOGICAL UNIT NOT SUPPORTED.
pub(crate) fn no_unit() -> Sense {
    plain(SenseKey::ILLEGAL_REQUEST, 0x2500)
}

/// A sense without information or pointer.
pub(crate) fn plain(key: SenseKey, code: u16) -> Sense {
    Sense { key, code, information: None, field: None }
}

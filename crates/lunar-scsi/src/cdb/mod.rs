//! Command descriptor blocks in the layout of the standards: one table each, and the typed command
//! that most block commands share.

pub mod sbc;
pub mod spc;
pub mod variable;

/// Length of the longest CDB of fixed length.
pub const FIXED_BYTES_MAX: usize = 16;

/// Returns the first `N` bytes of `cdb`, padded with zeroes if it is shorter. The dispatcher has
/// refused CDBs that are too short for their command, so the padding never replaces real fields.
pub fn first<const N: usize>(cdb: &[u8]) -> [u8; N] {
    if let Some(bytes) = cdb.first_chunk() {
        return *bytes;
    }
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(cdb) {
        *to = *from;
    }
    bytes
}

/// Length of a fixed CDB by the group code of its operation code, SPC-4 §4.2.5.1; `None` for the
/// variable length, reserved and vendor specific groups.
pub const fn length(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}

/// Offset of CONTROL by the operation code, whether or not the command is known: the second byte of
/// a variable-length CDB, else the last byte; `None` for reserved and vendor specific groups.
pub(crate) const fn control_at(opcode: u8) -> Option<usize> {
    match length(opcode) {
        Some(bytes) => Some(bytes - 1),
        None if opcode == variable::OPCODE => Some(variable::CONTROL_AT),
        None => None,
    }
}

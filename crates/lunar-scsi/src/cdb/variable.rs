//! Variable-length CDBs: the operation code 7Fh, a length, and a service action of 16 bits.
//! SPC-4 §4.2.3.

use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// The common start of all variable-length CDBs.
    pub struct VariableLength [10] {
        0 => opcode: u8,
        1 => control: u8,
        /// Number of bytes after this one.
        7 => additional_bytes: u8,
        8 => service_action: u16,
    }
}

/// The operation code.
pub const OPCODE: u8 = 0x7f;
/// Maximum length: ADDITIONAL CDB LENGTH has eight bits, and is a multiple of four.
pub const CDB_BYTES_MAX: usize = HEADER_BYTES + 252;
/// Length up to ADDITIONAL CDB LENGTH, which does not count these bytes.
pub const HEADER_BYTES: usize = 8;
/// Offset of CONTROL.
pub const CONTROL_AT: usize = 1;
/// Offset of ADDITIONAL CDB LENGTH.
pub const ADDITIONAL_BYTES_AT: usize = 7;
/// Offset of SERVICE ACTION.
pub const SERVICE_ACTION_AT: usize = 8;

/// Returns the length that a CDB announces; `None` if it ends before the field.
pub fn announced_bytes(cdb: &[u8]) -> Option<usize> {
    cdb.get(ADDITIONAL_BYTES_AT).map(|additional| HEADER_BYTES + usize::from(*additional))
}

/// True if the announced length is a multiple of four, includes a service action, and has been
/// received; bytes behind it have no meaning.
pub fn has_valid_length(cdb: &[u8]) -> bool {
    announced_bytes(cdb).is_some_and(|announced| {
        announced.is_multiple_of(4) && (VariableLength::LEN..=cdb.len()).contains(&announced)
    })
}

/// Returns the service action; 0 if the CDB ends before it.
pub fn service_action(cdb: &[u8]) -> u16 {
    cdb.get(SERVICE_ACTION_AT..SERVICE_ACTION_AT + 2).map_or(0, u16::get)
}

//! Third-party Copy page (8Fh): the values of OPERATING PARAMETERS, and the supported commands.
//! SPC-4 §7.8.17.
//!
//! Contains the mandatory descriptors. Block Device ROD Token Limits is not among them: its absence
//! tells Windows that there are no tokens.

use super::limits::{
    COPIES_MAX, CSCD_DESCRIPTORS_MAX, DATA_GRANULARITY_EXPONENT, DESCRIPTOR_LIST_BYTES_MAX,
    IMPLEMENTED_DESCRIPTORS, SEGMENT_DATA_BYTES_MAX, SEGMENT_DESCRIPTORS_MAX,
};
use crate::commands::{CommandEntry, CommandTable};
use crate::primary::DeviceServer;
use alloc::vec;
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// Parameter Data descriptor with its header of four bytes. SPC-4 §7.8.17.
    pub struct ParameterData [28] {
        4 => cscd_descriptors_max: u16,
        6 => segment_descriptors_max: u16,
        8 => descriptor_list_bytes_max: u32,
        12 => inline_bytes_max: u32,
    }
}

lunar_wire::wire_struct! {
    /// General Copy Operations descriptor with its header of four bytes.
    pub struct GeneralCopyOperations [32] {
        0 => total_copies_max: u32,
        4 => identified_copies_max: u32,
        8 => segment_bytes_max: u32,
        12 => data_granularity_exponent: u8,
        13 => inline_granularity_exponent: u8,
    }
}

/// Held Data descriptor: nothing is held.
const HELD_DATA: [u8; 32] = [0; 32];

const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const SUPPORTED_CSCD_IDS: u16 = 0x000c;
const GENERAL_COPY_OPERATIONS: u16 = 0x8001;
const HELD_DATA_TYPE: u16 = 0xc001;

/// Returns the descriptors in ascending order of their types, of units with these commands.
pub(crate) fn descriptors<U: DeviceServer>(commands: &CommandTable<U>) -> Vec<u8> {
    let parameters = ParameterData {
        cscd_descriptors_max: CSCD_DESCRIPTORS_MAX,
        segment_descriptors_max: SEGMENT_DESCRIPTORS_MAX,
        descriptor_list_bytes_max: DESCRIPTOR_LIST_BYTES_MAX,
        inline_bytes_max: 0,
    };
    let operations = GeneralCopyOperations {
        total_copies_max: COPIES_MAX.into(),
        identified_copies_max: COPIES_MAX.into(),
        segment_bytes_max: SEGMENT_DATA_BYTES_MAX,
        data_granularity_exponent: DATA_GRANULARITY_EXPONENT,
        inline_granularity_exponent: 0,
    };
    let mut supported = vec![IMPLEMENTED_DESCRIPTORS.len() as u8];
    supported.extend_from_slice(&IMPLEMENTED_DESCRIPTORS);
    [
        descriptor(SUPPORTED_COMMANDS, &supported_commands(commands)),
        descriptor(PARAMETER_DATA, &parameters.encode()),
        descriptor(SUPPORTED_DESCRIPTORS, &supported),
        // CSCDs have no numbers except those of their descriptors: an empty list.
        descriptor(SUPPORTED_CSCD_IDS, &[0, 0]),
        descriptor(GENERAL_COPY_OPERATIONS, &operations.encode()),
        descriptor(HELD_DATA_TYPE, &HELD_DATA),
    ]
    .concat()
}

/// Builds a descriptor padded to a multiple of four bytes.
fn descriptor(kind: u16, body: &[u8]) -> Vec<u8> {
    let bytes = body.len().next_multiple_of(4);
    let mut descriptor = kind.to_be_bytes().to_vec();
    descriptor.extend_from_slice(&(bytes as u16).to_be_bytes());
    descriptor.extend_from_slice(body);
    descriptor.resize(4 + bytes, 0);
    descriptor
}

/// Builds the list of supported commands from the table: its length, then the service actions of
/// each operation code.
fn supported_commands<U: DeviceServer>(table: &CommandTable<U>) -> Vec<u8> {
    let mut list = vec![0];
    for commands in table.commands().chunk_by(|one, next| one.opcode == next.opcode) {
        let copies = commands.iter().filter(|command| command.third_party_copy);
        // In fixed-length CDBs service actions have five bits.
        let action = |command: &CommandEntry<U>| command.service_action.map(|action| action as u8);
        let actions: Vec<u8> = copies.filter_map(action).collect();
        if actions.is_empty() {
            continue;
        }
        list.push(commands[0].opcode);
        list.push(actions.len() as u8);
        list.extend_from_slice(&actions);
    }
    list[0] = list.len() as u8 - 1;
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes() {
        let bytes = descriptors(&crate::commands::BLOCK_COMMANDS);
        let supported = [0, 1, 0, 12, 8, 0x83, 1, 0, 0x84, 3, 0, 3, 4, 0, 0, 0];
        assert_eq!(bytes[..16], supported);
        let parameters = [0, 4, 0, 28, 0, 0, 0, 0, 0, 64, 1, 0, 0, 0, 0x24, 0];
        assert_eq!(bytes[16..32], parameters);
        assert_eq!(bytes[32..48], [0; 16]);
        assert_eq!(bytes[48..56], [0, 8, 0, 4, 2, 0x02, 0xe4, 0]);
        assert_eq!(bytes[56..64], [0, 12, 0, 4, 0, 0, 0, 0]);
        let operations = [0x80, 1, 0, 32, 0, 0, 0, 16, 0, 0, 0, 16, 0x0f, 0xff, 0xf0, 0, 9, 0];
        assert_eq!(bytes[64..82], operations);
        assert_eq!(bytes[100..106], [0xc0, 1, 0, 32, 0, 0]);
        assert_eq!(bytes.len(), 136);
    }
}

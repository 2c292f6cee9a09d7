//! EXTENDED COPY (LID1) parameter lists in the form that initiators send.

use lunar_scsi::vpd::naa;

/// A segment descriptor: source and destination CSCD, number of blocks, and both LBAs.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub from: u16,
    pub to: u16,
    pub blocks: u16,
    pub source_lba: u64,
    pub destination_lba: u64,
}

/// Returns an identification descriptor of the unit whose UUID has this number.
pub fn cscd(unit: u128, block_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0xe4, 0, 0, 0, 1, 3, 0, 8];
    bytes.extend(naa(&unit.to_be_bytes()).to_be_bytes());
    bytes.extend([0; 12]);
    bytes.extend(block_bytes.to_be_bytes());
    bytes
}

/// Returns a parameter list with this list identifier.
pub fn list(name: u8, cscds: &[Vec<u8>], segments: &[Segment]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[0] = name;
    bytes[2..4].copy_from_slice(&(32 * cscds.len() as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(28 * segments.len() as u32).to_be_bytes());
    bytes.extend(cscds.concat());
    for segment in segments {
        bytes.extend([2, 0, 0, 0x18]);
        bytes.extend(segment.from.to_be_bytes());
        bytes.extend(segment.to.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(segment.blocks.to_be_bytes());
        bytes.extend(segment.source_lba.to_be_bytes());
        bytes.extend(segment.destination_lba.to_be_bytes());
    }
    bytes
}

/// Returns an EXTENDED COPY (LID1) CDB for a list of this length.
pub fn copy_cdb(list_bytes: usize) -> Vec<u8> {
    let mut cdb = vec![0x83; 1];
    cdb.resize(16, 0);
    cdb[10..14].copy_from_slice(&(list_bytes as u32).to_be_bytes());
    cdb
}

/// Returns a RECEIVE COPY RESULTS CDB: COPY STATUS (0) or FAILED SEGMENT DETAILS (4).
pub fn results_cdb(action: u8, name: u8) -> Vec<u8> {
    let mut cdb = vec![0x84, action, name];
    cdb.resize(16, 0);
    cdb[13] = 255;
    cdb
}

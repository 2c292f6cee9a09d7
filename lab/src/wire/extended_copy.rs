//! The parts of an EXTENDED COPY, written from SPC-4 alone.

use anyhow::{Context, Result};
use lunar_testkit::raw::RawClient;

/// Reads the logical unit's NAA designator of page 83h, including its header: SPC-4 §7.8.6.
///
/// # Errors
/// The unit has no NAA designator, or does not respond.
pub fn naa_designation(raw: &mut RawClient) -> Result<Vec<u8>> {
    let page = raw.run(&[0x12, 1, 0x83, 0x10, 0, 0], 4096)?.data;
    naa_designator(&page).with_context(|| format!("no NAA designator: {page:02x?}"))
}

/// Returns the NAA designator in a page 83h, including its header.
pub fn naa_designator(page: &[u8]) -> Option<Vec<u8>> {
    let mut at = 4;
    while let Some(&[_, kind, _, length]) = page.get(at..at + 4) {
        let end = at + 4 + usize::from(length);
        if kind == 0x03 {
            return Some(page.get(at..end)?.to_vec());
        }
        at = end;
    }
    None
}

/// Builds an identification descriptor CSCD (E4h) of a disk with blocks of this length, SPC-4
/// §6.4.5.6.
pub fn cscd(designation: &[u8], block_bytes: u16) -> Vec<u8> {
    let mut descriptor = vec![0xe4, 0, 0, 0];
    descriptor.extend(designation);
    descriptor.resize(30, 0);
    descriptor.extend(block_bytes.to_be_bytes());
    descriptor
}

/// Builds a block to block segment between two CSCDs by number, SPC-4 §6.4.6.7.
pub fn segment(cscds: [u16; 2], blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut descriptor = vec![0x02, 0, 0, 0x18];
    descriptor.extend(cscds.map(u16::to_be_bytes).concat());
    descriptor.extend([0, 0]);
    descriptor.extend(blocks.to_be_bytes());
    descriptor.extend(from.to_be_bytes());
    descriptor.extend(to.to_be_bytes());
    descriptor
}

/// Builds the command and its parameter list, which fits into immediate data: SPC-4 §6.4.3.
///
/// # Errors
/// The list is too long.
pub fn command(list_identifier: u8, cscds: &[u8], segments: &[u8]) -> Result<([u8; 16], Vec<u8>)> {
    let mut list = vec![list_identifier, 0, 0, u8::try_from(cscds.len())?, 0, 0, 0, 0, 0, 0, 0];
    list.extend([u8::try_from(segments.len())?, 0, 0, 0, 0]);
    list.extend([cscds, segments].concat());
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, u8::try_from(list.len())?);
    Ok((cdb, list))
}

//! Parameter data of commands, as device servers build them and initiators decode them.
//!
//! Lengths count all entries, also those beyond the allocation length, which are cut; an initiator
//! sees from the length that something is missing.

mod list;
mod map;
mod matches;

pub use list::{ListCompletion, ListResponse, ListResponseBuilder, ListedKind};
pub use map::{MapEntry, MapResponse, MapResponseBuilder};
pub use matches::{MatchesResponse, MatchesResponseBuilder};

use super::AttributeListError;
use crate::sense::SenseKey;
use alloc::vec::Vec;

/// The reason why parameter data cannot be decoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OsdResponseError {
    /// The data end inside the header.
    #[error("the parameter data end inside the header")]
    Header,
    /// The length is less than that of the header, or ends inside an entry.
    #[error("the length of the parameter data ends inside an entry")]
    Length,
    /// The format of the entries is unknown.
    #[error("entries of the unknown format {0:02X}h")]
    Format(u8),
    /// The attributes of an entry are invalid.
    #[error("attributes of an entry: {0}")]
    Attributes(#[from] AttributeListError),
}

/// Entries up to the allocation length, and the length of all.
#[derive(Clone, Debug)]
struct CutEntries {
    allocation_bytes: usize,
    /// Length of the header, which the allocation length includes.
    header_bytes: usize,
    bytes: Vec<u8>,
    all_bytes: u64,
}

impl CutEntries {
    fn new(allocation_bytes: usize, header_bytes: usize) -> Self {
        Self { allocation_bytes, header_bytes, bytes: Vec::new(), all_bytes: 0 }
    }

    fn push(&mut self, entry: &[u8]) {
        self.count(entry.len() as u64);
        let used = self.header_bytes.saturating_add(self.bytes.len());
        let room = self.allocation_bytes.saturating_sub(used);
        self.bytes.extend_from_slice(&entry[..entry.len().min(room)]);
    }

    /// Counts bytes of entries beyond the allocation length.
    fn count(&mut self, bytes: u64) {
        self.all_bytes = self.all_bytes.saturating_add(bytes);
    }

    fn is_full(&self) -> bool {
        self.header_bytes.saturating_add(self.bytes.len()) >= self.allocation_bytes
    }

    /// ADDITIONAL LENGTH, which does not count its own 8 bytes. FFFFFFFFFFFFFFFFh is that of more.
    fn additional_bytes(&self) -> u64 {
        self.all_bytes.saturating_add(self.header_bytes as u64 - 8)
    }

    fn finish(self, header: &[u8]) -> Vec<u8> {
        let mut response = header.to_vec();
        response.extend_from_slice(&self.bytes);
        response.truncate(self.allocation_bytes);
        response
    }
}

/// Entries as far as they arrived, and whether the length announces more.
struct ArrivedEntries<'a> {
    bytes: &'a [u8],
    is_truncated: bool,
}

/// Cuts `entries`, which follow a header of `header_bytes`, at ADDITIONAL LENGTH.
fn arrived(
    additional_bytes: u64,
    header_bytes: usize,
    entries: &[u8],
) -> Result<ArrivedEntries<'_>, OsdResponseError> {
    let all_bytes =
        additional_bytes.checked_sub(header_bytes as u64 - 8).ok_or(OsdResponseError::Length)?;
    let end = usize::try_from(all_bytes).unwrap_or(usize::MAX);
    let is_truncated = end > entries.len();
    Ok(ArrivedEntries { bytes: &entries[..end.min(entries.len())], is_truncated })
}

/// Splits entries of one length; a part of one at the end is only allowed if they are cut.
fn split_entries<'a, const N: usize>(
    entries: &ArrivedEntries<'a>,
) -> Result<&'a [[u8; N]], OsdResponseError> {
    let (whole, rest) = entries.bytes.as_chunks::<N>();
    if rest.is_empty() || entries.is_truncated { Ok(whole) } else { Err(OsdResponseError::Length) }
}

lunar_wire::wire_struct! {
    /// The parameter data of PERFORM TASK MANAGEMENT FUNCTION.
    pub struct TaskManagementResult [8] {
        /// 0006h.
        0 => additional_bytes: u16,
        4 => response: TaskManagementResponseCode,
        /// UADE DEPTH 30h, SENSE KEY 0Fh of the unit attention that was found.
        5 => depth_and_key: u8,
        /// ADDITIONAL SENSE CODE and its qualifier.
        6 => sense_code: u16,
    }
}

lunar_wire::wire_enum! {
    /// The service response of a task management function.
    pub struct TaskManagementResponseCode(u8) {
        FUNCTION_COMPLETE = 0x00, FUNCTION_SUCCEEDED = 0x05, FUNCTION_REJECTED = 0x08,
        INCORRECT_LOGICAL_UNIT_NUMBER = 0x09,
    }
}

impl TaskManagementResult {
    /// Creates the result without a unit attention.
    pub const fn new(response: TaskManagementResponseCode) -> Self {
        Self { additional_bytes: 6, response, depth_and_key: 0, sense_code: 0 }
    }

    /// SENSE KEY of the unit attention.
    pub const fn sense_key(&self) -> SenseKey {
        SenseKey(self.depth_and_key & 0x0f)
    }
}

//! The parameter data of QUERY: the ids of the members that meet the criteria.

use super::{CutEntries, OsdResponseError, arrived, split_entries};
use crate::osd::OsdVersion;
use alloc::vec::Vec;
use lunar_wire::Field;

/// OBJECT DESCRIPTOR FORMAT of user objects without attributes, in its byte.
const USER_OBJECTS: u8 = 0x21 << 2;

/// Offset of OBJECT DESCRIPTOR FORMAT. The ids follow it.
///
/// Interpretation: sources have the format in byte 12 and the ids without alignment (up to revision
/// 3), or the format in byte 11 (revision 5).
const fn format_at(version: OsdVersion) -> usize {
    match version {
        OsdVersion::Osd1 | OsdVersion::Osd2R03 => 12,
        OsdVersion::Osd2 => 11,
    }
}

/// Builds the parameter data.
#[derive(Clone, Debug)]
pub struct MatchesResponseBuilder {
    version: OsdVersion,
    entries: CutEntries,
}

impl MatchesResponseBuilder {
    /// Begins a list of matches.
    pub fn new(version: OsdVersion, allocation_bytes: usize) -> Self {
        let entries = CutEntries::new(allocation_bytes, format_at(version) + 1);
        Self { version, entries }
    }

    /// Adds a user object.
    pub fn push(&mut self, object: u64) {
        self.entries.push(&object.to_be_bytes());
    }

    /// True if a further object would only change ADDITIONAL LENGTH.
    pub fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Returns the parameter data, at most as long as the allocation length.
    pub fn finish(self) -> Vec<u8> {
        let mut header = self.entries.additional_bytes().to_be_bytes().to_vec();
        header.resize(format_at(self.version), 0);
        header.push(USER_OBJECTS);
        self.entries.finish(&header)
    }
}

/// Decoded parameter data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MatchesResponse {
    /// The ids that arrived.
    pub objects: Vec<u64>,
    /// True if the allocation length was too small for all.
    pub is_truncated: bool,
}

impl MatchesResponse {
    /// Decodes parameter data. Bytes behind the list are ignored.
    ///
    /// # Errors
    /// If the data end inside the header, or have a length or format that is invalid.
    pub fn decode(version: OsdVersion, data: &[u8]) -> Result<Self, OsdResponseError> {
        let format_at = format_at(version);
        let (header, entries) =
            data.split_at_checked(format_at + 1).ok_or(OsdResponseError::Header)?;
        if header[format_at] != USER_OBJECTS {
            return Err(OsdResponseError::Format(header[format_at] >> 2));
        }
        let entries = arrived(u64::get(&header[..8]), header.len(), entries)?;
        let objects = split_entries(&entries)?.iter().map(|id| u64::from_be_bytes(*id)).collect();
        Ok(Self { objects, is_truncated: entries.is_truncated })
    }
}

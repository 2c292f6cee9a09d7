//! The parameter data of READ MAP.

use super::{CutEntries, OsdResponseError, arrived, split_entries};
use crate::osd::{MapType, ObjectRange};
use alloc::vec::Vec;
use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// A range of the map.
    pub struct MapDescriptor [16] {
        2 => map_type: MapType,
        4 => length: u32,
        8 => start: u64,
    }
}

/// Length of the header: ADDITIONAL LENGTH.
const HEADER_BYTES: usize = 8;

/// A range of a user object with one state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MapEntry {
    /// The state of the bytes.
    pub map_type: MapType,
    /// The bytes.
    pub range: ObjectRange,
}

/// Builds the parameter data.
#[derive(Clone, Debug)]
pub struct MapResponseBuilder(CutEntries);

impl MapResponseBuilder {
    /// Maximum length of a descriptor: the greatest multiple of 4 KiB in its field. A longer range
    /// gets several descriptors.
    const LENGTH_MAX: u64 = 0xffff_f000;

    /// Begins a map.
    pub fn new(allocation_bytes: usize) -> Self {
        Self(CutEntries::new(allocation_bytes, HEADER_BYTES))
    }

    /// Adds a range, which ends within 2^64 bytes.
    pub fn push(&mut self, entry: &MapEntry) {
        let MapEntry { map_type, range } = *entry;
        let descriptors = range.length.div_ceil(Self::LENGTH_MAX);
        let mut pushed = 0;
        // Descriptors that do not fit are only counted: a range may need 2^32 of them.
        while pushed < descriptors && !self.0.is_full() {
            let offset = pushed * Self::LENGTH_MAX;
            let length = (range.length - offset).min(Self::LENGTH_MAX) as u32;
            let start = range.start.saturating_add(offset);
            self.0.push(&MapDescriptor { map_type, length, start }.encode());
            pushed += 1;
        }
        self.0.count((descriptors - pushed).saturating_mul(MapDescriptor::LEN as u64));
    }

    /// True if a further range would only change ADDITIONAL LENGTH.
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Returns the parameter data, at most as long as the allocation length.
    pub fn finish(self) -> Vec<u8> {
        let header = self.0.additional_bytes().to_be_bytes();
        self.0.finish(&header)
    }
}

/// Decoded parameter data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MapResponse {
    /// The ranges that arrived.
    pub entries: Vec<MapEntry>,
    /// True if the allocation length was too small for all.
    pub is_truncated: bool,
}

impl MapResponse {
    /// Decodes parameter data. Bytes behind the map are ignored.
    ///
    /// # Errors
    /// If the data end inside the header, or the length inside an entry.
    pub fn decode(data: &[u8]) -> Result<Self, OsdResponseError> {
        let (header, entries) =
            data.split_at_checked(HEADER_BYTES).ok_or(OsdResponseError::Header)?;
        let entries = arrived(u64::get(header), HEADER_BYTES, entries)?;
        let entry = |descriptor| {
            let MapDescriptor { map_type, length, start } = MapDescriptor::decode(descriptor);
            MapEntry { map_type, range: ObjectRange { start, length: length.into() } }
        };
        let is_truncated = entries.is_truncated;
        Ok(Self { entries: split_entries(&entries)?.iter().map(entry).collect(), is_truncated })
    }
}

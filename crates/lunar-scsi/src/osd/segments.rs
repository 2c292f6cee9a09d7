//! The segments of the data-in and data-out buffers of a command, and whether they overlap.

use super::layout::at;
use super::{AttributeParameters, OsdCdb, OsdOffset, SecurityMethod};
use crate::sense::Sense;
use alloc::vec::Vec;

/// A part of a buffer with its own offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BufferSegment {
    /// The CDB continuation segment, at the start of data-out.
    Continuation,
    /// The data of the command, after the continuation segment or at the start of data-in.
    CommandData,
    /// The list of attributes to set, or the value of one attribute (page format).
    SetAttributes,
    /// The list of attributes to read.
    GetAttributes,
    /// The attributes that were read.
    RetrievedAttributes,
    /// Integrity information, with the security method ALLDATA.
    IntegrityInformation,
}

/// A segment with its bytes in the buffer; at least one byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SegmentRange {
    /// The segment.
    pub segment: BufferSegment,
    /// Offset in the buffer.
    pub start: u64,
    /// Length in bytes; of data-in the maximum.
    pub bytes: u64,
}

impl SegmentRange {
    /// Offset of the first byte after the segment.
    pub const fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The reason why the segments of a buffer are invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SegmentError {
    /// Two segments share bytes.
    #[error("{segment:?} overlaps {other:?}")]
    Overlap {
        /// The segment with the field to point at.
        segment: BufferSegment,
        /// The other segment.
        other: BufferSegment,
        /// Offset of the CDB field that decides on the position of the segment.
        field: u16,
    },
    /// The segment does not end within 2^64 bytes.
    #[error("{segment:?} exceeds the longest buffer")]
    TooLong {
        /// The segment.
        segment: BufferSegment,
        /// Offset of the CDB field with its length.
        field: u16,
    },
    /// The offset has no valid code.
    #[error("the offset of {segment:?} has no valid code")]
    Offset {
        /// The segment.
        segment: BufferSegment,
        /// Offset of the CDB field.
        field: u16,
    },
}

impl SegmentError {
    /// The sense to send: INVALID FIELD IN CDB, with a pointer to the field.
    pub const fn sense(&self) -> Sense {
        let (Self::Overlap { field, .. }
        | Self::TooLong { field, .. }
        | Self::Offset { field, .. }) = *self;
        Sense::invalid_field_in_cdb(field, None)
    }
}

/// The segments of one buffer, in the order of their offsets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BufferSegments(Vec<SegmentRange>);

impl BufferSegments {
    /// The segments, in the order of their offsets.
    pub fn iter(&self) -> impl Iterator<Item = &SegmentRange> {
        self.0.iter()
    }

    /// The bytes of a segment; `None` if the command does not have it.
    pub fn get(&self, segment: BufferSegment) -> Option<&SegmentRange> {
        self.0.iter().find(|range| range.segment == segment)
    }

    /// Length of the buffer up to the end of the last segment.
    pub fn bytes(&self) -> u64 {
        self.0.last().map_or(0, SegmentRange::end)
    }
}

/// Collects segments with the CDB fields that decide on their positions.
#[derive(Default)]
struct Collector(Vec<(SegmentRange, u16)>);

impl Collector {
    /// Adds a segment; one without bytes is left out.
    fn add(
        &mut self,
        segment: BufferSegment,
        start: u64,
        bytes: u64,
        field: u16,
    ) -> Result<(), SegmentError> {
        if start.checked_add(bytes).is_none() {
            return Err(SegmentError::TooLong { segment, field });
        }
        if bytes > 0 {
            self.0.push((SegmentRange { segment, start, bytes }, field));
        }
        Ok(())
    }

    /// Sorts the segments and compares neighbours.
    fn finish(mut self) -> Result<BufferSegments, SegmentError> {
        // Stable: of two with one offset, the data of the command come first, and the pointer shows
        // the attributes.
        self.0.sort_by_key(|(range, _)| range.start);
        for pair in self.0.windows(2) {
            let [(first, _), (second, field)] = pair else { continue };
            if first.end() > second.start {
                let (segment, other) = (second.segment, first.segment);
                return Err(SegmentError::Overlap { segment, other, field: *field });
            }
        }
        Ok(BufferSegments(self.0.into_iter().map(|(range, _)| range).collect()))
    }
}

impl OsdCdb {
    /// Returns the segments of data-out.
    ///
    /// # Errors
    /// If two of them share bytes, or one has no valid position.
    pub fn data_out_segments(&self) -> Result<BufferSegments, SegmentError> {
        let mut all = Collector::default();
        let continuation_bytes = self.continuation_bytes.into();
        all.add(BufferSegment::Continuation, 0, continuation_bytes, at::LAST)?;
        let (bytes, field) = (self.command.data_out_bytes(), self.version.length_at());
        all.add(BufferSegment::CommandData, continuation_bytes, bytes, field)?;
        match &self.attributes {
            AttributeParameters::Page { set: Some(set), .. } => {
                let (start, bytes) = (set.value.offset, set.value.length.into());
                all.add(BufferSegment::SetAttributes, start, bytes, at::ATTRIBUTES + 24)?;
            }
            AttributeParameters::List { get, set } => {
                if let Some(set) = set {
                    let (start, bytes) = (set.offset, set.length.into());
                    all.add(BufferSegment::SetAttributes, start, bytes, at::ATTRIBUTES + 20)?;
                }
                if let Some(get) = get {
                    let (start, bytes) = (get.list.offset, get.list.length.into());
                    all.add(BufferSegment::GetAttributes, start, bytes, at::ATTRIBUTES + 4)?;
                }
            }
            AttributeParameters::Page { set: None, .. } | AttributeParameters::SetOne(_) => {}
        }
        // Three counts of bytes, and the integrity check value.
        let offset = self.security.data_out_integrity_offset;
        self.add_integrity(&mut all, offset, 24, self.version.data_out_integrity_at())?;
        all.finish()
    }

    /// Returns the segments of data-in, with their maximum lengths.
    ///
    /// # Errors
    /// The same as those of [`data_out_segments`](Self::data_out_segments).
    pub fn data_in_segments(&self) -> Result<BufferSegments, SegmentError> {
        let mut all = Collector::default();
        let (bytes, field) = (self.command.data_in_bytes(), self.version.length_at());
        all.add(BufferSegment::CommandData, 0, bytes, field)?;
        let retrieved = match &self.attributes {
            AttributeParameters::Page { get: Some(get), .. } => Some((get.retrieved, 8)),
            AttributeParameters::List { get: Some(get), .. } => Some((get.retrieved, 12)),
            _ => None,
        };
        if let Some((range, field)) = retrieved {
            let (start, bytes) = (range.offset, range.length.into());
            all.add(BufferSegment::RetrievedAttributes, start, bytes, at::ATTRIBUTES + field)?;
        }
        // Two counts of bytes, and the integrity check value.
        let offset = self.security.data_in_integrity_offset;
        self.add_integrity(&mut all, offset, 16, self.version.data_in_integrity_at())?;
        all.finish()
    }

    /// Adds integrity information of `counts_bytes` and an integrity check value, if the security
    /// method has it and its offset is in use.
    fn add_integrity(
        &self,
        all: &mut Collector,
        offset: OsdOffset,
        counts_bytes: u64,
        field: u16,
    ) -> Result<(), SegmentError> {
        let is_used = self.capability.security_method == SecurityMethod::ALLDATA
            && offset != OsdOffset::UNUSED;
        if !is_used {
            return Ok(());
        }
        let segment = BufferSegment::IntegrityInformation;
        let start = offset.decode(self.version);
        let start = start.ok_or(SegmentError::Offset { segment, field })?;
        let bytes = counts_bytes + self.version.integrity_value_bytes() as u64;
        all.add(segment, start, bytes, field)
    }
}

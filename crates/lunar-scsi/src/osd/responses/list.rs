//! The parameter data of LIST and LIST COLLECTION.

use super::{CutEntries, OsdResponseError, arrived, split_entries};
use crate::osd::lists::{decode_objects, encode_object};
use crate::osd::{AttributeValue, ObjectAttributes, ObjectType, OsdVersion};
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// The header.
    pub struct ListResponseHeader [24] {
        /// Number of bytes after this field, of all entries.
        0 => additional_bytes: u64,
        /// CONTINUATION OBJECT_ID; 0: the list is complete.
        8 => continuation: u64,
        16 => list_identifier: u32,
        /// OSD-1: LSTCHG 02h, ROOT 01h. OSD-2: OBJECT DESCRIPTOR FORMAT FCh, LSTCHG 02h.
        23 => format: u8,
    }
}

const LIST_CHANGED: u8 = 0x02;
const ROOT: u8 = 0x01;

/// The kind of listed objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListedKind {
    /// Partitions of the root.
    Partitions,
    /// Collections of a partition. OSD-1 shows them as user objects.
    Collections,
    /// User objects of a partition or a collection.
    UserObjects,
}

impl ListedKind {
    /// OBJECT DESCRIPTOR FORMAT of OSD-2 without attributes; that with attributes is one more.
    const fn format(self) -> u8 {
        match self {
            Self::Partitions => 0x01,
            Self::Collections => 0x11,
            Self::UserObjects => 0x21,
        }
    }

    const fn object_type(self) -> ObjectType {
        match self {
            Self::Partitions => ObjectType::PARTITION,
            Self::Collections => ObjectType::COLLECTION,
            Self::UserObjects => ObjectType::USER,
        }
    }

    fn from_format(format: u8) -> Option<(Self, bool)> {
        let all = [Self::Partitions, Self::Collections, Self::UserObjects];
        all.into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
            .find(|(kind, with_attributes)| format == kind.format() + u8::from(*with_attributes))
    }
}

/// The state of a list, at the end of a response.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListCompletion {
    /// CONTINUATION OBJECT_ID: the id from which a further command continues; `None` if the list is
    /// complete.
    pub continuation: Option<u64>,
    /// LIST IDENTIFIER, not 0 while the list continues.
    pub list_identifier: u32,
    /// LSTCHG: the list has changed since its identifier was issued.
    pub is_changed: bool,
}

/// Builds the parameter data.
#[derive(Clone, Debug)]
pub struct ListResponseBuilder {
    version: OsdVersion,
    kind: ListedKind,
    with_attributes: bool,
    entries: CutEntries,
}

impl ListResponseBuilder {
    /// Begins a list. OSD-1 has no attributes in lists.
    pub fn new(
        version: OsdVersion,
        kind: ListedKind,
        with_attributes: bool,
        allocation_bytes: usize,
    ) -> Self {
        let with_attributes = with_attributes && version.is_osd2();
        let entries = CutEntries::new(allocation_bytes, ListResponseHeader::LEN);
        Self { version, kind, with_attributes, entries }
    }

    /// Adds an object; `values` are ignored in a list without attributes.
    pub fn push(&mut self, id: u64, values: &[AttributeValue<'_>]) {
        if self.with_attributes {
            let object_type = self.kind.object_type();
            self.entries.push(&encode_object(self.version, id, object_type, values));
        } else {
            self.entries.push(&id.to_be_bytes());
        }
    }

    /// Counts objects without attributes that are not shown.
    pub fn count(&mut self, objects: u64) {
        self.entries.count(objects.saturating_mul(8));
    }

    /// True if a further object would only change ADDITIONAL LENGTH.
    pub fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Returns the parameter data, at most as long as the allocation length.
    pub fn finish(self, completion: ListCompletion) -> Vec<u8> {
        let mut format = if completion.is_changed { LIST_CHANGED } else { 0 };
        if self.version.is_osd2() {
            format |= (self.kind.format() + u8::from(self.with_attributes)) << 2;
        } else if self.kind == ListedKind::Partitions {
            format |= ROOT;
        }
        let header = ListResponseHeader {
            additional_bytes: self.entries.additional_bytes(),
            continuation: completion.continuation.unwrap_or(0),
            list_identifier: completion.list_identifier,
            format,
        };
        self.entries.finish(&header.encode())
    }
}

/// Decoded parameter data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListResponse<'a> {
    /// The kind of the objects.
    pub kind: ListedKind,
    /// The objects that arrived; without attributes if the list has none.
    pub objects: Vec<ObjectAttributes<'a>>,
    /// True if the allocation length was too small for all.
    pub is_truncated: bool,
    /// The state of the list.
    pub completion: ListCompletion,
}

impl<'a> ListResponse<'a> {
    /// Decodes parameter data. Bytes behind the list are ignored.
    ///
    /// # Errors
    /// If the data end inside the header, or have a length or format that is invalid.
    pub fn decode(version: OsdVersion, data: &'a [u8]) -> Result<Self, OsdResponseError> {
        let (header, entries) = data.split_first_chunk().ok_or(OsdResponseError::Header)?;
        let header = ListResponseHeader::decode(header);
        let entries = arrived(header.additional_bytes, ListResponseHeader::LEN, entries)?;
        let format = header.format >> 2;
        let (kind, with_attributes) = if version.is_osd2() {
            ListedKind::from_format(format).ok_or(OsdResponseError::Format(format))?
        } else if header.format & ROOT != 0 {
            (ListedKind::Partitions, false)
        } else {
            (ListedKind::UserObjects, false)
        };
        let objects = if with_attributes {
            decode_objects(version, entries.bytes, entries.is_truncated)?
        } else {
            let ids = split_entries::<8>(&entries)?.iter().map(|id| u64::from_be_bytes(*id));
            let object =
                |object| ObjectAttributes { object, object_type: None, values: Vec::new() };
            ids.map(object).collect()
        };
        let completion = ListCompletion {
            continuation: Some(header.continuation).filter(|id| *id != 0),
            list_identifier: header.list_identifier,
            is_changed: header.format & LIST_CHANGED != 0,
        };
        Ok(Self { kind, objects, is_truncated: entries.is_truncated, completion })
    }
}

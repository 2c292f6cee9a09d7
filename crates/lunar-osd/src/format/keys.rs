//! Keys of the rows of the index.

use crate::AttributeId;
use bytes::{Buf, BufMut};

/// Rows that are to be removed, some at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RemovedRows {
    /// Attributes.
    Attributes,
    /// Extents.
    Data,
    /// Members of a collection, and their references to it.
    Members,
    /// Objects of a partition, with all that they have.
    Objects,
    /// Partitions, with all that they have.
    Partitions,
}

impl RemovedRows {
    const ALL: [Self; 5] =
        [Self::Attributes, Self::Data, Self::Members, Self::Objects, Self::Partitions];

    const fn code(self) -> u64 {
        self as u64
    }

    fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// The key of a row. Keys are ordered as their bytes are: by kind, then by their fields.
///
/// Serial numbers name what an id has named at one time: a partition or an object that is created
/// again has another serial number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RowKey {
    /// Position of the log at the last checkpoint.
    LogPosition,
    /// Counters and quotas of the store.
    Root,
    /// A partition: serial number of the root, id.
    Partition(u64, u64),
    /// An object or collection: serial number of the partition, id.
    Object(u64, u64),
    /// An attribute in the set of attributes with this serial number.
    Attribute(u64, AttributeId),
    /// The bytes from an offset on, in the extent map with this serial number.
    Extent(u64, u64),
    /// A blob, by its first block.
    Blob(u64),
    /// Rows with this serial number that are to be removed.
    Removed(RemovedRows, u64),
    /// A page of the bitmap of used blocks.
    BitmapPage(u64),
    /// Number of objects that share a set of attributes, if more than one.
    SharedAttributes(u64),
    /// Number of objects that share an extent map, if more than one.
    SharedData(u64),
    /// A reference of an object to a collection: serial number of the object, number.
    Membership(u64, u32),
    /// A member of a collection: serial number of the collection, id of the object.
    Member(u64, u64),
    /// Times of access: serial number of the owner.
    Accessed(u64),
}

/// Encodes a name as a field that is ordered by page and number.
fn attribute_field(id: AttributeId) -> u64 {
    u64::from(id.page) << 32 | u64::from(id.number)
}

impl RowKey {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (kind, fields): (u8, &[u64]) = match self {
            Self::LogPosition => (0, &[]),
            Self::Root => (1, &[]),
            Self::Partition(root, id) => (2, &[root, id]),
            Self::Object(partition, id) => (3, &[partition, id]),
            Self::Attribute(serial, id) => (4, &[serial, attribute_field(id)]),
            Self::Extent(serial, offset) => (5, &[serial, offset]),
            Self::Blob(start) => (6, &[start]),
            Self::Removed(rows, serial) => (7, &[rows.code(), serial]),
            Self::BitmapPage(page) => (8, &[page]),
            Self::SharedAttributes(serial) => (9, &[serial]),
            Self::SharedData(serial) => (10, &[serial]),
            Self::Membership(serial, number) => (11, &[serial, u64::from(number)]),
            Self::Member(serial, id) => (12, &[serial, id]),
            Self::Accessed(serial) => (13, &[serial]),
        };
        let mut key = Vec::with_capacity(1 + fields.len() * 8);
        key.put_u8(kind);
        fields.iter().for_each(|field| key.put_u64(*field));
        key
    }

    pub(crate) fn decode(mut key: &[u8]) -> Option<Self> {
        let kind = key.try_get_u8().ok()?;
        let mut field = || key.try_get_u64().ok();
        let decoded = match kind {
            0 => Self::LogPosition,
            1 => Self::Root,
            2 => Self::Partition(field()?, field()?),
            3 => Self::Object(field()?, field()?),
            4 => {
                let (serial, id) = (field()?, field()?);
                Self::Attribute(serial, AttributeId::new((id >> 32) as u32, id as u32))
            }
            5 => Self::Extent(field()?, field()?),
            6 => Self::Blob(field()?),
            7 => Self::Removed(RemovedRows::from_code(field()?)?, field()?),
            8 => Self::BitmapPage(field()?),
            9 => Self::SharedAttributes(field()?),
            10 => Self::SharedData(field()?),
            11 => Self::Membership(field()?, u32::try_from(field()?).ok()?),
            12 => Self::Member(field()?, field()?),
            13 => Self::Accessed(field()?),
            _ => return None,
        };
        key.is_empty().then_some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_returns_encoded_keys_and_refuses_others() {
        let keys = [
            RowKey::LogPosition,
            RowKey::Root,
            RowKey::Partition(1, 0x1_0000),
            RowKey::Object(2, u64::MAX),
            RowKey::Attribute(3, AttributeId::new(u32::MAX, 1)),
            RowKey::Extent(3, 1 << 62),
            RowKey::Blob(9),
            RowKey::Removed(RemovedRows::Data, 3),
            RowKey::Removed(RemovedRows::Partitions, 3),
            RowKey::BitmapPage(0),
            RowKey::SharedAttributes(4),
            RowKey::SharedData(4),
            RowKey::Membership(5, u32::MAX),
            RowKey::Member(6, 0x1_0001),
            RowKey::Accessed(7),
        ];
        assert!(keys.map(RowKey::encode).is_sorted());
        for key in keys {
            let bytes = key.encode();
            assert_eq!(RowKey::decode(&bytes), Some(key));
            assert_eq!(RowKey::decode(&[&bytes[..], &[0]].concat()), None);
        }
        let wrong = [&[7][..], &[0; 7], &[9], &[0; 8]].concat();
        let long = [&[11][..], &[0; 8], &[1; 8]].concat();
        for key in [&[][..], &[2, 0], &[99], &wrong, &long] {
            assert_eq!(RowKey::decode(key), None);
        }
    }
}

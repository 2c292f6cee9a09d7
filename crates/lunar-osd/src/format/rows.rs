//! Rows of the index: keys and values.

use crate::block_io::{BLOCK_BYTES, blocks_of};
use crate::{AttributeId, ObjectId};
use bytes::{Buf, BufMut, Bytes};
use std::ops::Range;

/// Maximum length of a run of blocks that is one blob.
pub(crate) const BLOB_BLOCKS_MAX: u64 = 256;
pub(crate) const BLOB_BYTES_MAX: u64 = BLOB_BLOCKS_MAX * BLOCK_BYTES;

/// The key of a row. Keys are ordered as their bytes are: by kind, then by their fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RowKey {
    /// Position of the log at the last checkpoint.
    LogPosition,
    /// Counters of the store.
    Root,
    /// A partition, by id.
    Partition(u64),
    /// An object, by name.
    Object(ObjectId),
    /// An attribute of the object with this serial number.
    Attribute(u64, AttributeId),
    /// The bytes from an offset on, of the object with this serial number.
    Extent(u64, u64),
    /// A blob, by its first block.
    Blob(u64),
    /// A removed object, by serial number, whose rows are to be removed.
    Removed(u64),
    /// A page of the bitmap of used blocks.
    BitmapPage(u64),
}

impl RowKey {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (kind, fields): (u8, &[u64]) = match self {
            Self::LogPosition => (0, &[]),
            Self::Root => (1, &[]),
            Self::Partition(id) => (2, &[id]),
            Self::Object(id) => (3, &[id.partition, id.object]),
            Self::Attribute(serial, id) => {
                (4, &[serial, u64::from(id.page) << 32 | u64::from(id.number)])
            }
            Self::Extent(serial, offset) => (5, &[serial, offset]),
            Self::Blob(start) => (6, &[start]),
            Self::Removed(serial) => (7, &[serial]),
            Self::BitmapPage(page) => (8, &[page]),
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
            2 => Self::Partition(field()?),
            3 => Self::Object(ObjectId::new(field()?, field()?)),
            4 => {
                let (serial, id) = (field()?, field()?);
                Self::Attribute(serial, AttributeId::new((id >> 32) as u32, id as u32))
            }
            5 => Self::Extent(field()?, field()?),
            6 => Self::Blob(field()?),
            7 => Self::Removed(field()?),
            8 => Self::BitmapPage(field()?),
            _ => return None,
        };
        key.is_empty().then_some(decoded)
    }
}

/// The first record of the log that the index does not contain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LogPosition {
    /// Number of the record.
    pub(crate) number: u64,
    /// Its block in the log.
    pub(crate) block: u64,
    /// Number of the opening that writes it.
    pub(crate) opening: u64,
}

/// Counters of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RootRow {
    pub(crate) next_partition: u64,
    pub(crate) next_serial: u64,
}

/// A partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PartitionRow {
    /// Number under which its attributes are stored.
    pub(crate) serial: u64,
    pub(crate) next_object: u64,
}

/// An object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ObjectRow {
    /// Number under which its attributes and extents are stored; never used again.
    pub(crate) serial: u64,
    /// Logical length in bytes.
    pub(crate) length: u64,
}

/// Bytes of an object in a blob.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ExtentRow {
    /// First block of the blob.
    pub(crate) blob: u64,
    /// First byte in the blob.
    pub(crate) start: u32,
    /// Number of bytes.
    pub(crate) len: u32,
}

/// Encodes and decodes rows that are sequences of numbers.
macro_rules! number_rows {
    ($($row:ident { $($field:ident: $kind:ty),+ })+) => {
        $(impl $row {
            pub(crate) fn encode(self) -> Bytes {
                let mut out = Vec::new();
                $(out.put_slice(&self.$field.to_be_bytes());)+
                out.into()
            }

            pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
                let mut bytes = bytes;
                $(
                    let (value, rest) = bytes.split_first_chunk()?;
                    let $field = <$kind>::from_be_bytes(*value);
                    bytes = rest;
                )+
                bytes.is_empty().then_some(Self { $($field),+ })
            }
        })+
    };
}

number_rows! {
    LogPosition { number: u64, block: u64, opening: u64 }
    RootRow { next_partition: u64, next_serial: u64 }
    PartitionRow { serial: u64, next_object: u64 }
    ObjectRow { serial: u64, length: u64 }
    ExtentRow { blob: u64, start: u32, len: u32 }
}

impl ExtentRow {
    /// Returns the blocks of the blob that have the bytes.
    pub(crate) fn blocks(&self) -> Range<u64> {
        let start = u64::from(self.start);
        start / BLOCK_BYTES..blocks_of(start + u64::from(self.len))
    }
}

/// A run of blocks that extents use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BlobRow {
    /// Number of extents that use the blob.
    pub(crate) references: u32,
    /// CRC32C of each block.
    pub(crate) checksums: Vec<u32>,
}

impl BlobRow {
    /// Returns the row of `data`, which consists of whole blocks.
    pub(crate) fn of(data: &[u8]) -> Self {
        let blocks = data.chunks(BLOCK_BYTES as usize);
        Self { references: 1, checksums: blocks.map(lunar_wire::crc32c).collect() }
    }

    /// Returns the blocks, if the blob starts at `start`.
    pub(crate) fn blocks(&self, start: u64) -> Range<u64> {
        start..start.saturating_add(self.checksums.len() as u64)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(4 + self.checksums.len() * 4);
        out.put_u32(self.references);
        self.checksums.iter().for_each(|checksum| out.put_u32(*checksum));
        out.into()
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let references = bytes.try_get_u32().ok()?;
        let fits = bytes.len().is_multiple_of(4)
            && (1..=BLOB_BLOCKS_MAX as usize).contains(&(bytes.len() / 4));
        if references == 0 || !fits {
            return None;
        }
        let checksums = bytes.chunks_exact(4).map(|mut bytes| bytes.get_u32()).collect();
        Some(Self { references, checksums })
    }

    /// Returns true if `data` has these blocks.
    pub(crate) fn matches(&self, data: &[u8]) -> bool {
        data.len() as u64 == self.checksums.len() as u64 * BLOCK_BYTES
            && Self::of(data).checksums == self.checksums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_return_and_others_are_refused() {
        let id = ObjectId::new(0x10000, u64::MAX);
        let keys = [
            RowKey::LogPosition,
            RowKey::Root,
            RowKey::Partition(1),
            RowKey::Object(id),
            RowKey::Attribute(3, AttributeId::new(u32::MAX, 1)),
            RowKey::Extent(3, 1 << 62),
            RowKey::Blob(9),
            RowKey::Removed(3),
            RowKey::BitmapPage(0),
        ];
        assert!(keys.map(RowKey::encode).is_sorted());
        for key in keys {
            let bytes = key.encode();
            assert_eq!(RowKey::decode(&bytes), Some(key));
            assert_eq!(RowKey::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(RowKey::decode(&[]), None);
        assert_eq!(RowKey::decode(&[2, 0]), None);
        assert_eq!(RowKey::decode(&[99]), None);
    }

    #[test]
    fn rows_of_a_wrong_length_are_refused() {
        let row = ExtentRow { blob: 1, start: 4095, len: 2 };
        assert_eq!(ExtentRow::decode(&row.encode()), Some(row));
        assert_eq!(row.blocks(), 0..2);
        assert_eq!(ExtentRow::decode(&row.encode()[1..]), None);
        let blob = BlobRow::of(&[1; 8192]);
        assert_eq!(BlobRow::decode(&blob.encode()), Some(blob.clone()));
        assert_eq!(BlobRow::decode(&blob.encode()[..7]), None);
        assert_eq!(BlobRow::decode(&blob.encode()[..4]), None);
        assert!(blob.matches(&[1; 8192]) && !blob.matches(&[1; 4096]));
    }
}

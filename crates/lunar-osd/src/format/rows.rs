//! Values of the rows of the index.

use crate::block_io::{BLOCK_BYTES, blocks_of};
use bytes::{Buf, BufMut, Bytes};
use std::ops::Range;

/// Maximum length of a run of blocks that is one blob.
pub(crate) const BLOB_BLOCKS_MAX: u64 = 256;
pub(crate) const BLOB_BYTES_MAX: u64 = BLOB_BLOCKS_MAX * BLOCK_BYTES;

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

/// Limits of a partition and of what is created in it; `u64::MAX`: no limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QuotaFields {
    /// Length of an object, for new objects.
    pub(crate) length: u64,
    /// Capacity of all objects, in bytes.
    pub(crate) capacity: u64,
    /// Number of objects and collections.
    pub(crate) objects: u64,
    /// Number of collections of an object.
    pub(crate) memberships: u64,
}

impl QuotaFields {
    pub(crate) const NONE: Self =
        Self { length: u64::MAX, capacity: u64::MAX, objects: u64::MAX, memberships: u64::MAX };
}

/// Counters and quotas of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RootRow {
    /// Number under which its partitions and attributes are stored.
    pub(crate) serial: u64,
    pub(crate) next_serial: u64,
    pub(crate) next_partition: u64,
    pub(crate) partitions: u64,
    /// Maximum number of partitions.
    pub(crate) partition_quota: u64,
    /// Quotas of new partitions.
    pub(crate) quotas: QuotaFields,
    pub(crate) attributes_modified: u64,
}

/// A partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PartitionRow {
    /// 0: primary, 1: snapshot, 2: clone.
    pub(crate) kind: u8,
    /// Number under which its objects are stored.
    pub(crate) serial: u64,
    /// Number of its set of attributes.
    pub(crate) attributes: u64,
    /// The partition of which it is a snapshot or clone, or 0.
    pub(crate) source: u64,
    pub(crate) next_object: u64,
    /// Number of objects and collections.
    pub(crate) objects: u64,
    /// Capacity of all objects, in bytes.
    pub(crate) used: u64,
    pub(crate) quotas: QuotaFields,
    pub(crate) created: u64,
    pub(crate) attributes_modified: u64,
    pub(crate) data_modified: u64,
}

/// An object or a collection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ObjectRow {
    /// 0: user object, 1: collection.
    pub(crate) kind: u8,
    /// Number of the object; never used again.
    pub(crate) serial: u64,
    /// Number of its set of attributes.
    pub(crate) attributes: u64,
    /// Number of its extent map.
    pub(crate) data: u64,
    /// Logical length in bytes.
    pub(crate) length: u64,
    /// Capacity: the bytes of all blocks of its extents.
    pub(crate) used: u64,
    /// Maximum length.
    pub(crate) quota: u64,
    pub(crate) created: u64,
    pub(crate) attributes_modified: u64,
    pub(crate) data_modified: u64,
}

/// Number of users of shared rows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SharedRow {
    pub(crate) users: u64,
}

/// The collection to which a reference of an object leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MembershipRow {
    pub(crate) collection: u64,
    /// Serial number of the collection. The reference is void if the collection has another one.
    pub(crate) serial: u64,
}

/// A member of a collection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemberRow {
    /// Serial number of the object.
    pub(crate) serial: u64,
    /// Number of references of the object to the collection.
    pub(crate) count: u32,
}

/// Times of access, in milliseconds since 1970; 0: never.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct AccessedRow {
    pub(crate) attributes: u64,
    pub(crate) data: u64,
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

/// A field of a row.
trait RowField: Sized {
    fn encode_to(self, out: &mut Vec<u8>);
    fn decode_from(bytes: &mut &[u8]) -> Option<Self>;
}

impl RowField for u8 {
    fn encode_to(self, out: &mut Vec<u8>) {
        out.put_u8(self);
    }

    fn decode_from(bytes: &mut &[u8]) -> Option<Self> {
        bytes.try_get_u8().ok()
    }
}

impl RowField for u32 {
    fn encode_to(self, out: &mut Vec<u8>) {
        out.put_u32(self);
    }

    fn decode_from(bytes: &mut &[u8]) -> Option<Self> {
        bytes.try_get_u32().ok()
    }
}

impl RowField for u64 {
    fn encode_to(self, out: &mut Vec<u8>) {
        out.put_u64(self);
    }

    fn decode_from(bytes: &mut &[u8]) -> Option<Self> {
        bytes.try_get_u64().ok()
    }
}

impl RowField for QuotaFields {
    fn encode_to(self, out: &mut Vec<u8>) {
        [self.length, self.capacity, self.objects, self.memberships]
            .into_iter()
            .for_each(|limit| out.put_u64(limit));
    }

    fn decode_from(bytes: &mut &[u8]) -> Option<Self> {
        let mut next = || bytes.try_get_u64().ok();
        let (length, capacity) = (next()?, next()?);
        Some(Self { length, capacity, objects: next()?, memberships: next()? })
    }
}

/// Encodes and decodes rows that are sequences of fields.
macro_rules! field_rows {
    ($($row:ident { $($field:ident),+ })+) => {
        $(impl $row {
            pub(crate) fn encode(self) -> Bytes {
                let mut out = Vec::new();
                $(self.$field.encode_to(&mut out);)+
                out.into()
            }

            pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
                $(let $field = RowField::decode_from(&mut bytes)?;)+
                bytes.is_empty().then_some(Self { $($field),+ })
            }
        })+
    };
}

field_rows! {
    LogPosition { number, block, opening }
    RootRow {
        serial, next_serial, next_partition, partitions, partition_quota, quotas,
        attributes_modified
    }
    PartitionRow {
        kind, serial, attributes, source, next_object, objects, used, quotas, created,
        attributes_modified, data_modified
    }
    ObjectRow {
        kind, serial, attributes, data, length, used, quota, created, attributes_modified,
        data_modified
    }
    SharedRow { users }
    MembershipRow { collection, serial }
    MemberRow { serial, count }
    AccessedRow { attributes, data }
    ExtentRow { blob, start, len }
}

impl ExtentRow {
    /// Returns the length of the blocks that have the bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        let blocks = self.blocks();
        (blocks.end - blocks.start) * BLOCK_BYTES
    }

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

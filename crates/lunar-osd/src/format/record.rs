//! Records of the log: the changes of a group of commands.

use crate::block_io::{BLOCK_BYTES, blocks_of};
use bytes::{Buf, BufMut, Bytes};
use lunar_wire::crc32c;

const MAGIC: u32 = 0x4c4f_4752; // LOGR
/// Length of the header.
pub(crate) const RECORD_HEADER_BYTES: usize = 48;
/// Bytes of a record for a row, apart from its key and its value.
pub(crate) const ROW_OVERHEAD_BYTES: usize = 6;
/// Maximum length of the value of a row.
pub(crate) const ROW_BYTES_MAX: usize = 72 << 10;
/// The length of a value that says that the row is removed.
const REMOVED: u32 = u32::MAX;

/// Changes of rows, and data that the record itself contains.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct LogGroup {
    /// Keys with their new values, or none for rows that are removed.
    pub(crate) rows: Vec<(Bytes, Option<Bytes>)>,
    /// Blobs by their first blocks, without zeroes at the end.
    pub(crate) data: Vec<(u64, Bytes)>,
}

/// The fields in front of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RecordHeader {
    pub(crate) store: u128,
    pub(crate) opening: u64,
    pub(crate) number: u64,
}

/// The header of a record that may be the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) payload_bytes: usize,
    row_count: u32,
    checksum: u32,
}

impl FoundRecord {
    /// Returns the number of blocks of the record.
    pub(crate) fn block_count(&self) -> u64 {
        blocks_of((RECORD_HEADER_BYTES + self.payload_bytes) as u64)
    }
}

impl RecordHeader {
    /// Encodes the record of `group`, in whole blocks.
    pub(crate) fn encode(&self, group: &LogGroup) -> Bytes {
        let mut out = Vec::new();
        out.put_u32(MAGIC);
        out.put_u32(0); // the checksum
        out.put_u128(self.store);
        out.put_u64(self.opening);
        out.put_u64(self.number);
        out.put_u32(0); // the length
        out.put_u32(group.rows.len() as u32);
        for (key, value) in &group.rows {
            out.put_u16(key.len() as u16);
            out.put_u32(value.as_ref().map_or(REMOVED, |value| value.len() as u32));
            out.put_slice(key);
            out.put_slice(value.as_deref().unwrap_or_default());
        }
        for (blob, data) in &group.data {
            out.put_u64(*blob);
            out.put_u32(data.len() as u32);
            out.put_slice(data);
        }
        let length = (out.len() - RECORD_HEADER_BYTES) as u32;
        out[40..44].copy_from_slice(&length.to_be_bytes());
        let checksum = crc32c(&out[8..]);
        out[4..8].copy_from_slice(&checksum.to_be_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        out.into()
    }

    /// Returns the header at the start of `block` if it is that of this record.
    pub(crate) fn find(&self, mut block: &[u8], log_blocks: u64) -> Option<FoundRecord> {
        if block.len() < RECORD_HEADER_BYTES || block.get_u32() != MAGIC {
            return None;
        }
        let checksum = block.get_u32();
        let (store, opening) = (block.get_u128(), block.get_u64());
        let found = Self { store, opening, number: block.get_u64() };
        let payload_bytes = block.get_u32() as usize;
        let record = FoundRecord { payload_bytes, row_count: block.get_u32(), checksum };
        (found == *self && record.block_count() <= log_blocks).then_some(record)
    }
}

impl LogGroup {
    /// Parses a record; `None` if it is incomplete or its checksum is wrong.
    pub(crate) fn decode(found: FoundRecord, record: &[u8]) -> Option<Self> {
        let record = record.get(..RECORD_HEADER_BYTES + found.payload_bytes)?;
        if crc32c(&record[8..]) != found.checksum {
            return None;
        }
        let mut rest = &record[RECORD_HEADER_BYTES..];
        let mut group = Self::default();
        for _ in 0..found.row_count {
            let (key_len, len) = (rest.try_get_u16().ok()?, rest.try_get_u32().ok()?);
            let key = split_bytes(&mut rest, usize::from(key_len))?;
            let value = match len {
                REMOVED => None,
                len if len as usize > ROW_BYTES_MAX => return None,
                len => Some(split_bytes(&mut rest, len as usize)?),
            };
            group.rows.push((key, value));
        }
        while !rest.is_empty() {
            let (blob, len) = (rest.try_get_u64().ok()?, rest.try_get_u32().ok()?);
            group.data.push((blob, split_bytes(&mut rest, len as usize)?));
        }
        Some(group)
    }
}

fn split_bytes(rest: &mut &[u8], len: usize) -> Option<Bytes> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(Bytes::copy_from_slice(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_returns_and_each_flipped_bit_is_found() {
        let group = LogGroup {
            rows: vec![(b"key"[..].into(), Some(b"value"[..].into())), (b"gone"[..].into(), None)],
            data: vec![(77, b"data"[..].into())],
        };
        let header = RecordHeader { store: 1, opening: 2, number: 3 };
        let bytes = header.encode(&group);
        let parse = |bytes: &[u8]| LogGroup::decode(header.find(bytes, 256)?, bytes);
        assert_eq!(parse(&bytes), Some(group));
        let used = RECORD_HEADER_BYTES + 3 + 5 + 4 + 2 * ROW_OVERHEAD_BYTES + 12 + 4;
        for bit in 0..used * 8 {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bytes), None, "bit {bit}");
        }
        assert!(RecordHeader { number: 4, ..header }.find(&bytes, 256).is_none());
        assert!(RecordHeader { opening: 1, ..header }.find(&bytes, 256).is_none());
    }

    #[test]
    fn counts_that_lie_are_refused() {
        let header = RecordHeader { store: 1, opening: 2, number: 3 };
        let mut bytes = header.encode(&LogGroup::default()).to_vec();
        bytes[44..48].fill(0xff);
        let checksum = crc32c(&bytes[8..48]);
        bytes[4..8].copy_from_slice(&checksum.to_be_bytes());
        let found = header.find(&bytes, 256).unwrap();
        assert_eq!(LogGroup::decode(found, &bytes), None);
    }
}

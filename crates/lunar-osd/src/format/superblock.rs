//! The superblock: the layout of the store, and the chunks of the index.

use crate::StoreError;
use crate::block_io::{BLOCK_BYTES, BlockIo};
use bytes::{Buf, BufMut, Bytes};
use lunar_wire::crc32c;
use std::ops::Range;

/// Length of the area of a copy of the superblock.
pub(crate) const SUPERBLOCK_BLOCKS: u64 = 32;

const MAGIC: &[u8; 8] = b"LunarOS\0";
const VERSION: u16 = 1;
/// Length of the fields before the chunks.
const HEADER_BYTES: usize = 80;
const CHUNKS_MAX: usize = (SUPERBLOCK_BLOCKS * BLOCK_BYTES) as usize / 8 - HEADER_BYTES / 8;
const BLOCKS_MIN: u64 = 2048;
const LOG_BLOCKS_MIN: u64 = 256;
/// Maximum length of the reserve for chunks.
const RESERVE_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;
/// No chunk: this part of the index was never written.
const NO_CHUNK: u64 = 0;

/// The fixed areas of a store, in blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreLayout {
    pub(crate) block_count: u64,
    pub(crate) log_blocks: u64,
    /// Length of a chunk of the index, with its block of checksums.
    pub(crate) chunk_blocks: u64,
}

impl StoreLayout {
    /// Returns the layout of a new store; `None` if the device is too small or too large.
    pub(crate) fn for_device(block_count: u64, log_bytes: Option<u64>) -> Option<Self> {
        let log_blocks = match log_bytes {
            Some(bytes) => bytes / BLOCK_BYTES,
            None => (block_count / 16).clamp(LOG_BLOCKS_MIN, (64 << 20) / BLOCK_BYTES),
        };
        let chunk_blocks = if block_count < (4 << 30) / BLOCK_BYTES { 16 } else { 256 };
        let layout = Self { block_count, log_blocks, chunk_blocks };
        layout.is_possible().then_some(layout)
    }

    fn is_possible(&self) -> bool {
        (BLOCKS_MIN..1 << 40).contains(&self.block_count)
            && (LOG_BLOCKS_MIN..=self.block_count / 2).contains(&self.log_blocks)
            && (2..=1024).contains(&self.chunk_blocks)
    }

    /// Returns the blocks of the log.
    pub(crate) const fn log(&self) -> Range<u64> {
        SUPERBLOCK_BLOCKS..SUPERBLOCK_BLOCKS + self.log_blocks
    }

    /// Returns the first blocks of the copies of the superblock.
    pub(crate) const fn superblocks(&self) -> [u64; 2] {
        [0, self.block_count - SUPERBLOCK_BLOCKS]
    }

    /// Returns the part of the data area that only chunks may use.
    pub(crate) fn reserve(&self) -> Range<u64> {
        let data = self.data();
        let wanted = (self.block_count / 32).min(RESERVE_BLOCKS_MAX).max(16 * self.chunk_blocks);
        data.end - wanted.min((data.end - data.start) / 4)..data.end
    }

    /// Returns the blocks that chunks and extents can use.
    pub(crate) const fn data(&self) -> Range<u64> {
        self.log().end..self.block_count - SUPERBLOCK_BLOCKS
    }
}

/// The contents of a superblock.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Superblock {
    pub(crate) layout: StoreLayout,
    /// Random id of the store.
    pub(crate) store: u128,
    /// The copy with the higher generation counts.
    pub(crate) generation: u64,
    /// Length of the index in bytes, as redb has set it.
    pub(crate) index_bytes: u64,
    /// First block of each chunk, or none.
    pub(crate) chunks: Vec<Option<u64>>,
}

impl Superblock {
    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.chunks.len() * 8);
        out.put_slice(MAGIC);
        out.put_u16(VERSION);
        out.put_bytes(0, 2);
        out.put_u32(0); // the checksum
        out.put_u128(self.store);
        out.put_u64(self.generation);
        out.put_u64(self.layout.block_count);
        out.put_u64(self.layout.log_blocks);
        out.put_u64(self.layout.chunk_blocks);
        out.put_u64(self.index_bytes);
        out.put_u64(self.chunks.len() as u64);
        self.chunks.iter().for_each(|chunk| out.put_u64(chunk.unwrap_or(NO_CHUNK)));
        let checksum = crc32c(&out[16..]);
        out[12..16].copy_from_slice(&checksum.to_be_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        out.into()
    }

    /// Parses a copy; `block_count` is that of the device.
    fn decode(bytes: &[u8], block_count: u64) -> Result<Self, StoreError> {
        let refuse = |what: &str| Err(StoreError::NotAStore(what.into()));
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
            return refuse("the device has no superblock");
        }
        let (mut fields, all) = (&bytes[8..], bytes);
        let version = fields.get_u16();
        if version != VERSION {
            return refuse(&format!("format version {version} is not known"));
        }
        fields.advance(2);
        let checksum = fields.get_u32();
        let store = fields.get_u128();
        let generation = fields.get_u64();
        let layout = StoreLayout {
            block_count: fields.get_u64(),
            log_blocks: fields.get_u64(),
            chunk_blocks: fields.get_u64(),
        };
        let index_bytes = fields.get_u64();
        let count = fields.get_u64();
        if count > CHUNKS_MAX as u64 {
            return refuse("the superblock has too many chunks");
        }
        let count = count as usize;
        if all.get(16..HEADER_BYTES + count * 8).map(crc32c) != Some(checksum) {
            return refuse("the checksum of the superblock is wrong");
        }
        if !layout.is_possible() || layout.block_count > block_count {
            return refuse("the superblock does not fit the device");
        }
        let chunk = |fields: &mut &[u8]| Some(fields.get_u64()).filter(|start| *start != NO_CHUNK);
        let chunks: Vec<_> = (0..count).map(|_| chunk(&mut fields)).collect();
        let area = layout.data();
        let fits = |start: &u64| area.contains(start) && area.end - start >= layout.chunk_blocks;
        if !chunks.iter().flatten().all(fits) {
            return refuse("a chunk of the index is outside the device");
        }
        Ok(Self { layout, store, generation, index_bytes, chunks })
    }

    /// Reads the valid copy with the higher generation.
    pub(crate) fn read(io: &BlockIo) -> Result<Self, StoreError> {
        let have = io.block_count();
        if have < BLOCKS_MIN {
            return Err(StoreError::NotAStore("the device is too small".into()));
        }
        let read = |at| Self::decode(&io.read_blocking(at, SUPERBLOCK_BLOCKS)?, have);
        let first = read(0);
        let end = first.as_ref().map_or(have, |found| found.layout.block_count);
        match (first, read(end - SUPERBLOCK_BLOCKS)) {
            (Ok(first), Ok(second)) if second.store == first.store => {
                Ok(if second.generation > first.generation { second } else { first })
            }
            (Ok(only), _) | (Err(_), Ok(only)) => Ok(only),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Writes the copy of this generation, without a flush.
    ///
    /// # Errors
    /// `NoSpace` if the index has more chunks than the area holds.
    pub(crate) fn write(&self, io: &BlockIo) -> Result<(), StoreError> {
        if self.chunks.len() > CHUNKS_MAX {
            return Err(StoreError::NoSpace);
        }
        let copy = self.layout.superblocks()[(self.generation % 2) as usize];
        io.write_blocking(copy, self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_returns_and_each_flipped_bit_is_found() {
        let layout = StoreLayout::for_device(4096, None).unwrap();
        let chunks = vec![Some(layout.data().start), None, Some(layout.data().start + 16)];
        let block = Superblock { layout, store: 7, generation: 3, index_bytes: 9000, chunks };
        let bytes = block.encode();
        assert_eq!(Superblock::decode(&bytes, 4096).unwrap(), block);
        for bit in 0..(HEADER_BYTES + 24) * 8 {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let decoded = Superblock::decode(&bytes, 4096);
            // Two reserved bytes are not covered.
            assert!(decoded.is_err() || (80..96).contains(&bit), "bit {bit}");
        }
        assert!(Superblock::decode(&bytes, 4095).is_err());
        assert!(Superblock::decode(&bytes[..100], 4096).is_err());
    }

    #[test]
    fn a_device_that_is_too_small_has_no_layout() {
        assert_eq!(StoreLayout::for_device(BLOCKS_MIN - 1, None), None);
        assert_eq!(StoreLayout::for_device(BLOCKS_MIN, Some(8 << 20)), None);
        assert!(StoreLayout::for_device(BLOCKS_MIN, None).is_some());
    }
}

//! The file of redb, on chunks of the device.

use crate::StoreError;
use crate::allocator::Allocator;
use crate::block_io::{BLOCK_BYTES, BlockIo};
use crate::format::Superblock;
use bytes::{Buf, Bytes, BytesMut};
use lunar_wire::crc32c;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file of chunks. A chunk is allocated when a part of it is first written; its first block has
/// the checksums of the others. redb never changes a page in place that its last durable commit
/// refers to, so a checksum that a crash leaves behind is that of an unused page. The first block
/// is the exception: redb has checksums of its own there.
#[derive(Debug)]
pub(crate) struct ChunkFile {
    io: BlockIo,
    allocator: Arc<Mutex<Allocator>>,
    state: Mutex<ChunkState>,
}

#[derive(Debug)]
struct ChunkState {
    superblock: Superblock,
    is_changed: bool,
    sums: BTreeMap<usize, ChunkSums>,
}

/// The checksums of the blocks of a chunk; 0: never written.
#[derive(Debug)]
struct ChunkSums {
    sums: Vec<u32>,
    is_changed: bool,
}

fn sum(block: &[u8]) -> u32 {
    crc32c(block).max(1)
}

/// Consecutive blocks in one chunk.
struct Part {
    chunk: usize,
    /// Blocks of the chunk, not counting the one with the checksums.
    blocks: Range<u64>,
}

impl ChunkFile {
    pub(crate) fn new(
        io: BlockIo,
        allocator: Arc<Mutex<Allocator>>,
        superblock: Superblock,
    ) -> Self {
        let state = ChunkState { superblock, is_changed: false, sums: BTreeMap::new() };
        Self { io, allocator, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, ChunkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first block of a chunk, if it is allocated, with its checksums in memory.
    ///
    /// No I/O is done under the lock: readers and a checkpoint do not wait for each other's.
    fn load(&self, chunk: usize) -> Result<Option<u64>, StoreError> {
        let state = self.lock();
        let Some(start) = state.superblock.chunks.get(chunk).copied().flatten() else {
            return Ok(None);
        };
        let (is_loaded, count) =
            (state.sums.contains_key(&chunk), state.superblock.layout.chunk_blocks - 1);
        drop(state);
        if !is_loaded {
            let mut block = self.io.read_blocking(start, 1)?;
            let sums = (0..count).map(|_| block.get_u32()).collect();
            // Another thread may have loaded and changed them meanwhile.
            self.lock().sums.entry(chunk).or_insert(ChunkSums { sums, is_changed: false });
        }
        Ok(Some(start))
    }

    fn read_part(&self, part: &Part) -> Result<Bytes, StoreError> {
        let count = part.blocks.end - part.blocks.start;
        let Some(start) = self.load(part.chunk)? else {
            return Ok(vec![0; (count * BLOCK_BYTES) as usize].into());
        };
        let (first, end) = (part.blocks.start as usize, part.blocks.end as usize);
        let sums = self.lock().sums.get(&part.chunk).map(|found| found.sums[first..end].to_vec());
        let sums = sums.ok_or(StoreError::NoSpace)?;
        let mut data =
            BytesMut::from(&self.io.read_blocking(start + 1 + part.blocks.start, count)?[..]);
        for (at, (block, want)) in data.chunks_mut(BLOCK_BYTES as usize).zip(sums).enumerate() {
            let is_first = part.chunk == 0 && first + at == 0;
            match want {
                0 => block.fill(0),
                want if is_first || sum(block) == want => {}
                _ => {
                    return Err(StoreError::damaged(
                        "the checksum of a page of the index is wrong",
                    ));
                }
            }
        }
        Ok(data.freeze())
    }

    fn write_part(&self, part: &Part, data: Bytes) -> Result<(), StoreError> {
        let start = match self.load(part.chunk)? {
            Some(start) => start,
            None => self.allocate(&mut self.lock(), part.chunk)?,
        };
        let mut state = self.lock();
        let sums = state.sums.get_mut(&part.chunk).ok_or(StoreError::NoSpace)?;
        sums.is_changed = true;
        let new = data.chunks(BLOCK_BYTES as usize).map(sum);
        for (old, new) in sums.sums[part.blocks.start as usize..].iter_mut().zip(new) {
            *old = new;
        }
        drop(state);
        self.io.write_blocking(start + 1 + part.blocks.start, data)
    }

    fn allocate(&self, state: &mut ChunkState, chunk: usize) -> Result<u64, StoreError> {
        let count = state.superblock.layout.chunk_blocks;
        let mut allocator = self.allocator.lock().unwrap_or_else(PoisonError::into_inner);
        let run = allocator.allocate_metadata(count).ok_or(StoreError::NoSpace)?;
        drop(allocator);
        if state.superblock.chunks.len() <= chunk {
            state.superblock.chunks.resize(chunk + 1, None);
        }
        state.superblock.chunks[chunk] = Some(run.start);
        state.is_changed = true;
        let sums = vec![0; count as usize - 1];
        state.sums.insert(chunk, ChunkSums { sums, is_changed: true });
        Ok(run.start)
    }

    /// Writes the checksums and the superblock, and flushes the device.
    fn sync(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        let ChunkState { superblock, is_changed, sums } = &mut *state;
        let mut writes = Vec::new();
        for (chunk, sums) in sums.iter_mut().filter(|(_, sums)| sums.is_changed) {
            let Some(Some(start)) = superblock.chunks.get(*chunk) else { continue };
            let mut block: Vec<u8> = sums.sums.iter().flat_map(|sum| sum.to_be_bytes()).collect();
            block.resize(BLOCK_BYTES as usize, 0);
            writes.push((*start, block));
            sums.is_changed = false;
        }
        let superblock = is_changed.then(|| {
            superblock.generation += 1;
            superblock.clone()
        });
        *is_changed = false;
        drop(state);
        for (start, block) in writes {
            self.io.write_blocking(start, block.into())?;
        }
        if let Some(superblock) = superblock {
            superblock.write(&self.io)?;
        }
        self.io.flush_blocking()
    }

    /// Splits blocks of the file at the borders of chunks.
    fn parts(state: &ChunkState, blocks: Range<u64>) -> Vec<Part> {
        let per_chunk = state.superblock.layout.chunk_blocks - 1;
        let mut parts = Vec::new();
        let mut block = blocks.start;
        while block < blocks.end {
            let (chunk, first) = (block / per_chunk, block % per_chunk);
            let count = (per_chunk - first).min(blocks.end - block);
            parts.push(Part { chunk: chunk as usize, blocks: first..first + count });
            block += count;
        }
        parts
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let Some(blocks) = covering(offset, out.len()) else { return Err(StoreError::NoSpace) };
        let mut data = BytesMut::with_capacity(out.len() + 2 * BLOCK_BYTES as usize);
        let parts = Self::parts(&self.lock(), blocks);
        for part in parts {
            data.extend_from_slice(&self.read_part(&part)?);
        }
        out.copy_from_slice(&data[(offset % BLOCK_BYTES) as usize..][..out.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        let Some(blocks) = covering(offset, from.len()) else { return Err(StoreError::NoSpace) };
        let mut data = BytesMut::zeroed(((blocks.end - blocks.start) * BLOCK_BYTES) as usize);
        if data.len() != from.len() {
            self.read_at(blocks.start * BLOCK_BYTES, &mut data)?;
        }
        data[(offset % BLOCK_BYTES) as usize..][..from.len()].copy_from_slice(from);
        let mut data = data.freeze();
        let parts = Self::parts(&self.lock(), blocks);
        for part in parts {
            let bytes = (part.blocks.end - part.blocks.start) * BLOCK_BYTES;
            self.write_part(&part, data.split_to(bytes as usize))?;
        }
        Ok(())
    }
}

fn covering(offset: u64, len: usize) -> Option<Range<u64>> {
    Some(offset / BLOCK_BYTES..offset.checked_add(len as u64)?.div_ceil(BLOCK_BYTES))
}

impl StorageBackend for ChunkFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().superblock.index_bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out).map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.superblock.index_bytes = len;
        state.is_changed = true;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync().map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data).map_err(io::Error::other)
    }
}

//! A sparse disk in memory; its contents are lost when the process ends.

mod atomic;
mod chunk_map;
mod piece;
mod stretch;
#[cfg(test)]
mod tests;

use crate::extents::Extents;
use crate::resize::ResizableGeometry;
use crate::{
    AtomicWrite, BlockDevice, BlockRange, BoxFuture, Buffer, Clear, Error, ErrorKind, Extent,
    ExtentState, Geometry, PAGE_BYTES, Resize, Sparse,
};
use atomic::BorderCrossings;
use bytes::Bytes;
use chunk_map::ChunkMap;
use piece::{CHUNK_COST, Cancelled, NEW_PAGE_COST, PAGE_COST, Piece, SEARCH_COST};
use std::fmt;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of pages in a chunk; pages are found and locked by chunk.
const CHUNK_PAGES: usize = 16;
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_BYTES) as u64;

/// Number of locks over which the chunks are spread.
const SHARDS: u64 = 64;

/// A disk in memory. Pages of 4096 bytes are allocated when first written and freed by `unmap`.
/// Nothing survives the process, so a durable write is an ordinary one.
///
/// A chunk is read and written under its lock, so neither reads nor writes tear a block. Atomic
/// writes of several chunks also hold the fence exclusively; all other operations on several chunks
/// hold it shared. Long work is done in pieces, one per poll, and no future waits while it holds
/// the fence.
pub struct MemoryDevice {
    name: String,
    geometry: ResizableGeometry,
    /// Guards of the fence are not `Send`, so the compiler refuses a future of this disk that waits
    /// while it holds one.
    fence: RwLock<BorderCrossings>,
    /// Held during a resize.
    resizing: tokio::sync::Mutex<()>,
    shards: Vec<RwLock<ChunkMap>>,
}

type Page = Box<[u8; PAGE_BYTES]>;

#[derive(Default)]
struct Chunk {
    pages: [Option<Page>; CHUNK_PAGES],
}

/// A part of a page: `page` is its index in the chunk, `bytes` the range inside it.
struct Part {
    page: usize,
    bytes: Range<usize>,
}

impl MemoryDevice {
    /// Creates a disk of `size_bytes` zeroes that takes no memory yet.
    ///
    /// # Errors
    /// `Open` for an impossible geometry, as [`Geometry::new`].
    pub fn new(
        size_bytes: u64,
        block_bytes: u32,
        physical_block_bytes: u32,
    ) -> Result<Self, Error> {
        let name = format!("mem:{size_bytes}");
        let geometry = Geometry::new(&name, size_bytes, block_bytes, physical_block_bytes)?;
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Ok(Self {
            name,
            geometry: ResizableGeometry::new(geometry),
            fence: RwLock::default(),
            resizing: tokio::sync::Mutex::default(),
            shards,
        })
    }

    /// Returns the memory that written pages take now.
    pub fn allocated_bytes(&self) -> u64 {
        let pages = |chunk: &Chunk| chunk.pages.iter().flatten().count() as u64;
        let shard = |index| self.shard(index).chunks().map(pages).sum::<u64>();
        (0..SHARDS).map(shard).sum::<u64>() * PAGE_BYTES as u64
    }

    fn shard(&self, chunk: u64) -> RwLockReadGuard<'_, ChunkMap> {
        let shard = &self.shards[(chunk % SHARDS) as usize];
        shard.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, chunk: u64) -> RwLockWriteGuard<'_, ChunkMap> {
        let shard = &self.shards[(chunk % SHARDS) as usize];
        shard.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_now(&self, range: BlockRange, into: &mut [u8]) -> Result<(), Error> {
        let bytes = self.geometry.get().checked(&self.name, range, into.len(), false)?;
        let start = bytes.start;
        for chunk in chunks(bytes) {
            let shard = self.shard(chunk.start / CHUNK_BYTES);
            let pages = shard.get(chunk.start / CHUNK_BYTES).map(|c| &c.pages);
            for (at, part) in parts(chunk) {
                let into = &mut into[(at - start) as usize..][..part.bytes.len()];
                match pages.and_then(|pages| pages[part.page].as_ref()) {
                    Some(page) => into.copy_from_slice(&page[part.bytes]),
                    None => into.fill(0),
                }
            }
        }
        Ok(())
    }

    fn write_now(&self, range: BlockRange, from: &[u8]) -> Result<(), Error> {
        let bytes = self.geometry.get().checked(&self.name, range, from.len(), true)?;
        let start = bytes.start;
        for bytes in chunks(bytes) {
            let mut shard = self.shard_mut(bytes.start / CHUNK_BYTES);
            let from = &from[(bytes.start - start) as usize..];
            shard.get_or_default(bytes.start / CHUNK_BYTES).write(bytes, from);
        }
        Ok(())
    }

    /// Clears all of `bytes`, even beyond the current size of the disk.
    async fn clear_all(&self, bytes: Range<u64>) -> Result<(), Cancelled> {
        let mut piece = Piece::default();
        let mut at = self.next_existing(bytes.start..bytes.end, &mut piece);
        while at < bytes.end {
            piece.yield_after_piece().await?;
            let chunk = at..bytes.end.min((at / CHUNK_BYTES + 1) * CHUNK_BYTES);
            at = chunk.end;
            piece.count(self.clear_chunk(chunk));
            at = self.next_existing(at..bytes.end, &mut piece);
        }
        Ok(())
    }

    /// Clears `bytes`, which lie in one chunk; returns the cost.
    fn clear_chunk(&self, bytes: Range<u64>) -> u32 {
        let index = bytes.start / CHUNK_BYTES;
        let mut shard = self.shard_mut(index);
        let Some(chunk) = shard.get_mut(index) else { return CHUNK_COST };
        let pages = chunk.pages.iter().flatten().count() as u32;
        chunk.clear(bytes);
        if chunk.pages.iter().all(Option::is_none) {
            shard.remove(index);
        }
        CHUNK_COST + pages * PAGE_COST
    }

    /// Returns the start of the first existing chunk in `bytes`, or the start of `bytes` if it lies
    /// in that chunk; the end of `bytes` if there is no chunk.
    fn next_existing(&self, bytes: Range<u64>, piece: &mut Piece) -> u64 {
        if bytes.is_empty() {
            return bytes.end;
        }
        piece.count(SEARCH_COST);
        let next = self.next_chunk(bytes.start / CHUNK_BYTES);
        next.map_or(bytes.end, |index| bytes.start.max(index * CHUNK_BYTES).min(bytes.end))
    }

    /// Writes zeroes to `bytes`, which lie in one chunk; returns the cost.
    fn zero_chunk(&self, bytes: Range<u64>) -> u32 {
        let mut shard = self.shard_mut(bytes.start / CHUNK_BYTES);
        let chunk = shard.get_or_default(bytes.start / CHUNK_BYTES);
        let zero = |(_, part): (u64, Part)| match &mut chunk.pages[part.page] {
            Some(page) => {
                page[part.bytes].fill(0);
                PAGE_COST
            }
            none => {
                *none = Some(zero_page());
                NEW_PAGE_COST
            }
        };
        parts(bytes).map(zero).sum()
    }

    fn cancelled(&self, cancelled: Cancelled) -> Error {
        Error::new(ErrorKind::Medium, &*self.name, "the transfer was lost").because(cancelled)
    }

    async fn extents(&self, range: BlockRange, extents_max: usize) -> Result<Vec<Extent>, Error> {
        let bytes = self.geometry.get().checked_range(&self.name, range)?;
        let mut extents = Extents::new(u64::from(self.geometry.get().block_bytes), extents_max);
        let mut piece = Piece::default();
        let mut at = bytes.start;
        while at < bytes.end && !extents.full {
            piece.yield_after_piece().await.map_err(|e| self.cancelled(e))?;
            at = self.push_chunk_extents(at..bytes.end, &mut extents, &mut piece);
        }
        Ok(extents.done)
    }

    /// Adds the state of the first chunk of `bytes`, or of the gap up to the next chunk; returns
    /// the end of that part.
    fn push_chunk_extents(
        &self,
        bytes: Range<u64>,
        extents: &mut Extents,
        piece: &mut Piece,
    ) -> u64 {
        let index = bytes.start / CHUNK_BYTES;
        piece.count(CHUNK_COST);
        if let Some(chunk) = self.shard(index).get(index) {
            let end = bytes.end.min((index + 1) * CHUNK_BYTES);
            for (at, part) in parts(bytes.start..end) {
                let state = match chunk.pages[part.page] {
                    Some(_) => ExtentState::Mapped,
                    None => ExtentState::Unmapped,
                };
                extents.push(at..at + part.bytes.len() as u64, state);
            }
            return end;
        }
        let end = self.next_existing(bytes.clone(), piece);
        extents.push(bytes.start..end, ExtentState::Unmapped);
        end
    }

    /// Returns the number of the first existing chunk from `index` on.
    fn next_chunk(&self, index: u64) -> Option<u64> {
        let next = |shard| self.shard(shard).first_from(index, shard);
        (0..SHARDS).filter_map(next).min()
    }
}

impl Chunk {
    /// Writes the first bytes of `from` to `bytes`, which lie in this chunk.
    fn write(&mut self, bytes: Range<u64>, from: &[u8]) {
        let start = bytes.start;
        for (at, part) in parts(bytes) {
            let from = &from[(at - start) as usize..][..part.bytes.len()];
            let page = self.pages[part.page].get_or_insert_with(zero_page);
            page[part.bytes].copy_from_slice(from);
        }
    }

    /// Frees or zeroes the pages of `bytes`, which lie in this chunk.
    fn clear(&mut self, bytes: Range<u64>) {
        for (_, part) in parts(bytes) {
            let page = &mut self.pages[part.page];
            if part.bytes.len() == PAGE_BYTES {
                *page = None;
            } else if let Some(page) = page {
                page[part.bytes].fill(0);
            }
        }
    }
}

fn zero_page() -> Page {
    Box::new([0; PAGE_BYTES])
}

/// Splits `bytes` at chunk boundaries.
fn chunks(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    cut(bytes, CHUNK_BYTES)
}

/// Splits `bytes` of one chunk at page boundaries; yields each part with its first byte on the
/// disk.
fn parts(bytes: Range<u64>) -> impl Iterator<Item = (u64, Part)> {
    cut(bytes, PAGE_BYTES as u64).map(|bytes| {
        let inside = (bytes.start % PAGE_BYTES as u64) as usize;
        let part = Part {
            page: (bytes.start % CHUNK_BYTES) as usize / PAGE_BYTES,
            bytes: inside..inside + (bytes.end - bytes.start) as usize,
        };
        (bytes.start, part)
    })
}

fn cut(bytes: Range<u64>, every: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = bytes.start;
    std::iter::from_fn(move || {
        let start = at;
        at = bytes.end.min((start / every + 1) * every);
        (start < bytes.end).then_some(start..at)
    })
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn read(&self, range: BlockRange, mut into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            let _fence = self.share_fence_over(range);
            self.read_now(range, &mut into)?;
            Ok(into)
        })
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.try_share_fence_over(range).is_some_and(|_fence| self.read_now(range, into).is_ok())
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _fence = self.share_fence_over(range);
            self.write_now(range, &from)
        })
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], _durable: bool) -> bool {
        self.try_share_fence_over(range).is_some_and(|_fence| self.write_now(range, from).is_ok())
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        Some(self)
    }

    fn atomic(&self) -> Option<&dyn AtomicWrite> {
        Some(self)
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn io_tier(&self) -> String {
        "memory".into()
    }
}

impl Resize for MemoryDevice {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let new = self.geometry.with_size(&self.name, size_bytes)?;
            let _resizing = self.resizing.lock().await;
            let old = self.geometry.get().size_bytes();
            // While the fence is held, no change of several chunks that was checked against the old
            // size is in progress.
            if size_bytes < old {
                let exclusive = self.fence_mut();
                self.geometry.set(new);
                drop(exclusive);
                self.clear_all(size_bytes..old).await.map_err(|e| self.cancelled(e))?;
            } else if size_bytes > old {
                // A write that was checked before the disk was shortened may have arrived after the
                // clearing.
                self.clear_all(old..size_bytes).await.map_err(|e| self.cancelled(e))?;
                self.geometry.set(new);
            }
            Ok(())
        })
    }
}

impl Sparse for MemoryDevice {
    fn unmap(&self, range: BlockRange, _durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.deallocate(range))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if may_unmap { self.deallocate(range).await } else { self.zero(range).await }
        })
    }

    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        _durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move { self.clear_piece_now(&ranges, clear) })
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        Box::pin(self.extents(range, extents_max))
    }

    fn granularity_bytes(&self) -> u32 {
        PAGE_BYTES as u32
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("geometry", &self.geometry.get())
            .finish_non_exhaustive()
    }
}

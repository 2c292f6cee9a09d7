//! Atomic writes to a memory disk.

use super::{CHUNK_BYTES, MemoryDevice, SHARDS, chunks};
use crate::{AtomicLimits, AtomicWrite, BlockRange, BoxFuture, Error, PAGE_BYTES};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Maximum length of an atomic write. All chunks of an atomic write are locked at once, and no two
/// of its chunks may share a lock.
pub(super) const ATOMIC_BYTES_MAX: u32 = 1 << 20;
const _: () = assert!((ATOMIC_BYTES_MAX as u64) < (SHARDS - 1) * CHUNK_BYTES);

/// Counts of atomic writes that crossed chunk boundaries; every 64th boundary shares a counter.
pub(super) struct BorderCrossings([u64; SHARDS as usize]);

impl Default for BorderCrossings {
    fn default() -> Self {
        Self([0; SHARDS as usize])
    }
}

impl BorderCrossings {
    /// Returns the count of the boundary at this byte.
    pub(super) fn of(&self, border: u64) -> u64 {
        self.0[(border / CHUNK_BYTES % SHARDS) as usize]
    }

    fn count(&mut self, bytes: Range<u64>) {
        for chunk in chunks(bytes).skip(1) {
            self.0[(chunk.start / CHUNK_BYTES % SHARDS) as usize] += 1;
        }
    }
}

type FenceGuard<'a> = RwLockReadGuard<'a, BorderCrossings>;

impl MemoryDevice {
    /// Takes the fence shared if `bytes` span several chunks: no atomic write of several chunks
    /// runs while the guard lives. An operation on one chunk is atomic under the chunk's own lock.
    pub(super) fn share_fence(&self, bytes: &Range<u64>) -> Option<FenceGuard<'_>> {
        let share_fence = || self.fence.read().unwrap_or_else(PoisonError::into_inner);
        has_several_chunks(bytes).then(share_fence)
    }

    /// Calls [`share_fence`](Self::share_fence) for all of `range`.
    pub(super) fn share_fence_over(&self, range: BlockRange) -> Option<FenceGuard<'_>> {
        let bytes = self.geometry.get().byte_range(range)?;
        self.share_fence(&bytes)
    }

    /// Calls [`share_fence_over`](Self::share_fence_over), if no waiting is needed.
    pub(super) fn try_share_fence_over(&self, range: BlockRange) -> Option<Option<FenceGuard<'_>>> {
        let bytes = self.geometry.get().byte_range(range);
        if bytes.is_some_and(|bytes| has_several_chunks(&bytes)) {
            match self.fence.try_read() {
                Ok(passing) => Some(Some(passing)),
                Err(TryLockError::Poisoned(passing)) => Some(Some(passing.into_inner())),
                Err(TryLockError::WouldBlock) => None,
            }
        } else {
            Some(None)
        }
    }

    /// Takes the fence exclusively: no other operation reads or changes several chunks meanwhile.
    pub(super) fn fence_mut(&self) -> RwLockWriteGuard<'_, BorderCrossings> {
        self.fence.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes under the locks of all chunks. Several locks are always taken in order.
    fn write_all_chunks(&self, bytes: Range<u64>, from: &[u8]) {
        let shard_of = |bytes: &Range<u64>| bytes.start / CHUNK_BYTES % SHARDS;
        let start = bytes.start;
        let mut held: BTreeMap<_, _> =
            chunks(bytes.clone()).map(|chunk| (shard_of(&chunk), None)).collect();
        for (shard, guard) in &mut held {
            *guard = Some(self.shard_mut(*shard));
        }
        for bytes in chunks(bytes) {
            let Some(Some(shard)) = held.get_mut(&shard_of(&bytes)) else { continue };
            let from = &from[(bytes.start - start) as usize..];
            shard.get_or_default(bytes.start / CHUNK_BYTES).write(bytes, from);
        }
    }
}

fn has_several_chunks(bytes: &Range<u64>) -> bool {
    bytes.end > (bytes.start / CHUNK_BYTES + 1) * CHUNK_BYTES
}

impl AtomicWrite for MemoryDevice {
    fn limits(&self) -> AtomicLimits {
        AtomicLimits { unit_bytes: PAGE_BYTES as u32, bytes_max: ATOMIC_BYTES_MAX }
    }

    fn write_atomic(
        &self,
        range: BlockRange,
        from: Bytes,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let checked =
                || self.limits().checked(self.geometry.get(), &self.name, range, from.len());
            let bytes = checked()?;
            let mut fence = has_several_chunks(&bytes).then(|| self.fence_mut());
            if let Some(crossings) = &mut fence {
                checked()?; // a resize may have come first
                crossings.count(bytes.clone());
            }
            self.write_all_chunks(bytes, &from);
            Ok(())
        })
    }
}

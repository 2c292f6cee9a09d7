//! Deallocating and zeroing: UNMAP, WRITE SAME, and pieces of a copy that read as zeroes.
//!
//! These commands may be long, carry no data that would bound their number, and queue for the disk
//! while they hold their ranges. A command that needs some of these blocks exclusively waits for
//! all of them, and the writes of all initiators wait behind it. Therefore one clearing command at
//! a time holds its range, or waits for it, at each unit; the others wait for its
//! [permit](crate::clear_limit) and hold nothing.
//!
//! The permit comes before the range: no command waits for a permit while it holds a range. A
//! command that has the permit and waits for its range makes the commands of its own owner that
//! keep the range [awaited](crate::awaited), since the other owners wait for its permit. It has no
//! permit while it waits behind a write that is [held](super::hold) for room.
//!
//! A device clears a long range in pieces, and the connection may wait for its turn between two of
//! them. The command releases its range and its permit there, and queues for both anew, behind the
//! commands that wait. SBC-3 defines WRITE SAME and UNMAP as an operation for each block, and none
//! for all blocks together, so other commands may come between two pieces. A piece is cleared while
//! its range is held: it is before or after each command that has blocks exclusively, and tears no
//! atomic write. Blocks that the device clears in one piece are cleared under one hold.

use super::hold::LockMode;
use super::{Run, Step, block_range, internal_failure};
use crate::clear_limit::ClearPermit;
use crate::detached_writes::MediumChange;
use crate::ranges::{ClaimedBlocks, RangeGuard};
use futures_util::FutureExt;
use lunar_block::{BlockDevice, Clear, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Time after which a command that waits for its range releases its permit and waits on: a disk
/// that hangs or has no room left may withhold the range for any time, and another UNMAP may be the
/// command that makes room.
const RANGE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Blocks that are still to be cleared.
pub(super) struct Uncleared {
    blocks: ClaimedBlocks,
    /// The first block behind the blocks that the device has cleared.
    cleared: Arc<AtomicU64>,
}

impl Uncleared {
    pub(super) fn new(blocks: impl Into<ClaimedBlocks>) -> Self {
        Self { blocks: blocks.into(), cleared: Arc::default() }
    }

    pub(super) fn blocks(&self) -> &ClaimedBlocks {
        &self.blocks
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Removes the blocks that the last piece has cleared.
    pub(super) fn piece_ended(&mut self) -> Step<()> {
        let rest = self.blocks.starting_at(self.cleared.load(SeqCst));
        if !rest.is_empty() && rest == self.blocks {
            return Err(internal_failure().into()); // it would loop for ever
        }
        self.blocks = rest;
        Ok(())
    }
}

impl Run<'_> {
    /// Clears `blocks`, piece by piece.
    pub(super) async fn clear(
        &self,
        blocks: impl Into<ClaimedBlocks>,
        clear: Clear,
        durable: bool,
    ) -> Step<()> {
        let mut uncleared = Uncleared::new(blocks);
        loop {
            let work = || self.clear_work(&uncleared, clear, durable);
            drop(self.with_space(uncleared.blocks().clone(), LockMode::Clear, work).await?);
            uncleared.piece_ended()?;
            if uncleared.is_empty() {
                return Ok(());
            }
            self.pause().await?;
        }
    }

    /// Waits after a piece, without any lock, until the command may do the next one.
    pub(super) async fn pause(&self) -> Step<()> {
        self.abort.yield_now().await?;
        Ok(self.abort.wait_to_move().await?)
    }

    /// Locks `blocks` as [`lock`](Self::lock) does, to deallocate or zero them while the permit is
    /// held.
    pub(super) async fn lock_to_clear(
        &self,
        blocks: impl Into<ClaimedBlocks>,
    ) -> Step<(RangeGuard, Option<ClearPermit>)> {
        let blocks = blocks.into();
        let locked = loop {
            if self.is_behind_held(&blocks) {
                Box::pin(self.wait_behind_held(blocks.clone())).await?;
            }
            let locked = self.lock_with_permit(&blocks).await?;
            if !self.is_behind_held(&blocks) {
                break locked;
            }
        };
        self.check_locked()?;
        Ok(locked)
    }

    /// Waits for the permit, and then for the blocks.
    async fn lock_with_permit(
        &self,
        blocks: &ClaimedBlocks,
    ) -> Step<(RangeGuard, Option<ClearPermit>)> {
        let owner = self.memory.buffers.owner();
        let permit = self.unit.clear_limit.permit(owner, &self.abort);
        let permit = self.abort.unless(permit).await??;
        let ranges = &self.unit.ranges;
        let queued = ranges.queue_for_command(owner, Some(&self.abort), blocks.clone(), false)?;
        queued.mark_own_blockers_awaited();
        let mut lock = pin!(self.abort.unless(queued.granted()));
        if let Some(guard) = lock.as_mut().now_or_never() {
            return Ok((guard?, Some(permit)));
        }
        if let Ok(guard) = tokio::time::timeout(RANGE_WAIT_MAX, &mut lock).await {
            return Ok((guard?, Some(permit)));
        }
        drop(permit);
        Ok((lock.await?, None))
    }

    /// Clears the next piece.
    pub(super) fn clear_work(
        &self,
        uncleared: &Uncleared,
        clear: Clear,
        durable: bool,
    ) -> MediumChange {
        let device = Arc::clone(self.unit.device());
        let ranges = uncleared.blocks.as_ranges().iter().copied().map(block_range).collect();
        let cleared = Arc::clone(&uncleared.cleared);
        Box::pin(async move {
            let sparse = device.sparse().ok_or_else(|| not_sparse(&*device))?;
            cleared.store(sparse.clear_piece(ranges, clear, durable).await?, SeqCst);
            Ok(())
        })
    }
}

fn not_sparse(device: &dyn BlockDevice) -> lunar_block::Error {
    lunar_block::Error::new(
        ErrorKind::Medium,
        device.name(),
        "the device no longer supports deallocation",
    )
}

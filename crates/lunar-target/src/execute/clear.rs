//! Deallocating and zeroing: UNMAP, WRITE SAME, and pieces of a copy that read as zeroes.
//!
//! These may be long, carry no data that would bound their number, and queue for the disk while
//! they hold their ranges. A command that wants some of these blocks alone waits for all that hold
//! them, and the writes of everybody wait behind it. So one at a time holds its range, or waits for
//! it, at each unit; the others wait for its [permit](crate::clear_limit) and hold nothing.
//!
//! The permit comes before the range: nobody waits for a permit who holds a range.

use super::{Run, Step, block_range};
use crate::clear_limit::ClearPermit;
use crate::leftovers::Change;
use crate::ranges::{ClaimedBlocks, RangeGuard};
use futures_util::FutureExt;
use lunar_block::{BlockDevice, ErrorKind};
use lunar_scsi::plan::LbaRange;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// A command that waits longer for its range gives its permit back, and goes on waiting: a disk
/// that hangs or has no room left may keep the range from it for as long as it likes, and another
/// UNMAP may be what makes room.
const RANGE_WAIT_MAX: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Does `work`, which deallocates or zeroes `blocks`.
    pub(super) async fn clear(
        &self,
        blocks: impl Into<ClaimedBlocks>,
        work: impl Fn() -> Change,
    ) -> Step<()> {
        let (guard, permit) = self.lock_to_clear(blocks).await?;
        self.with_room(guard, permit, work).await.map(drop)
    }

    /// Holds `blocks` as [`lock`](Self::lock) does, to deallocate or zero them while the permit is
    /// held.
    pub(super) async fn lock_to_clear(
        &self,
        blocks: impl Into<ClaimedBlocks>,
    ) -> Step<(RangeGuard, Option<ClearPermit>)> {
        let permit = self.unit.clear_limit.permit(self.memory.buffers.owner());
        let permit = self.abort.unless(permit).await??;
        let mut lock = pin!(self.lock(blocks, false));
        if let Some(guard) = lock.as_mut().now_or_never() {
            return Ok((guard?, Some(permit)));
        }
        if let Ok(guard) = tokio::time::timeout(RANGE_WAIT_MAX, &mut lock).await {
            return Ok((guard?, Some(permit)));
        }
        drop(permit);
        Ok((lock.await?, None))
    }

    pub(super) fn zeroes_work(&self, range: LbaRange, may_unmap: bool, durable: bool) -> Change {
        let device = Arc::clone(self.unit.device());
        Box::pin(async move {
            let sparse = device.sparse().ok_or_else(|| not_sparse(&*device))?;
            sparse.write_zeroes(block_range(range), may_unmap, durable).await
        })
    }

    pub(super) fn unmap_work(&self, ranges: &[LbaRange], durable: bool) -> Change {
        let device = Arc::clone(self.unit.device());
        let ranges = ranges.iter().copied().map(block_range).collect();
        Box::pin(async move {
            let sparse = device.sparse().ok_or_else(|| not_sparse(&*device))?;
            sparse.unmap_all(ranges, durable).await
        })
    }
}

fn not_sparse(device: &dyn BlockDevice) -> lunar_block::Error {
    lunar_block::Error::new(ErrorKind::Medium, device.name(), "it can no longer deallocate")
}

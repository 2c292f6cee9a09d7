//! Limit of one command at a time that deallocates or zeroes blocks of a unit.

use crate::abort::AbortSignal;
use crate::ranges::{RangeGuard, RangeLocks, TooManyWaiting};
use lunar_block::MemoryOwner;
use lunar_scsi::plan::LbaRange;
use std::sync::Arc;

/// The queue of the commands of a unit that deallocate or zero. Owners take turns; the commands of
/// one owner go in order of arrival.
#[derive(Debug)]
pub(crate) struct ClearLimit {
    queue: Arc<RangeLocks>,
}

impl Default for ClearLimit {
    fn default() -> Self {
        Self { queue: Arc::new(RangeLocks::of_unit()) }
    }
}

/// The permit to deallocate or zero; passes to the next in the queue when dropped.
#[derive(Debug)]
pub(crate) struct ClearPermit {
    _front: RangeGuard,
}

impl ClearLimit {
    /// The range that stands for the whole queue: the command at the front holds it alone.
    const FRONT: LbaRange = LbaRange { lba: 0, count: 1 };

    /// Waits until no other command holds the permit.
    pub(crate) async fn permit(
        &self,
        owner: &Arc<MemoryOwner>,
        command: &AbortSignal,
    ) -> Result<ClearPermit, TooManyWaiting> {
        let front = self.queue.lock_for(owner, command, Self::FRONT, true).await?;
        Ok(ClearPermit { _front: front })
    }
}

//! Changes of the medium, and their handling when the device has no free space.
//!
//! If the unit holds writes ([`OutOfSpace::Hold`]), a write that fails for lack of space is tried
//! again until it succeeds or is aborted. Between two tries the write locks no blocks: space may be
//! missing for hours, and commands of other initiators that need some of the blocks exclusively
//! would wait as long, though these blocks may be allocated. Each try starts from the beginning and
//! repeats all checks: an initiator that lost its access meanwhile writes nothing more. A long
//! operation that begins meanwhile does not wait for a held write, and makes it fail.
//!
//! Later commands of another nexus may write the same blocks first: commands of two initiators are
//! only ordered when one initiator sends its command after the other's has ended. Later commands of
//! the same nexus wait until the held write has ended ([`HeldWriteGuard`]): an initiator may send
//! two writes to the same blocks one after the other, and the data of a held write's later try must
//! not overwrite the data of the second. The second write is thus acknowledged after the first, and
//! its data stay. Writes that were at the disk at the same time as the first try are not ordered:
//! each may have come last there as well.
//!
//! A command that reads and writes its blocks atomically begins each try by reading. If a try fails
//! for lack of space after it has written some data, it writes the old data back before it releases
//! its blocks, so that no other command reads a part of the new data.
//!
//! [`HeldWriteGuard`]: crate::thin_space::HeldWriteGuard

#[cfg(test)]
mod tests;

use super::{Run, Step, Stop, write_failed};
use crate::detached_writes::{MediumChange, TrackedChange};
use crate::ranges::{ClaimedBlocks, RangeGuard};
use crate::thin_space::{HOLD_INTERVAL, HeldWriteGuard, OutOfSpace};
use bytes::Bytes;
use lunar_block::{Error, ErrorKind};
use lunar_scsi::plan::LbaRange;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

/// Mode in which a change locks its blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LockMode {
    /// Shared with other writers.
    Shared,
    /// For this command alone.
    Exclusive,
    /// Shared with other writers, with the unit's permit to deallocate or zero.
    Clear,
}

impl Run<'_> {
    /// Locks `blocks` and does `work`, again and again while the unit holds writes and there is no
    /// free space; returns the lock.
    pub(super) async fn with_space(
        &self,
        blocks: ClaimedBlocks,
        mode: LockMode,
        work: impl Fn() -> MediumChange,
    ) -> Step<RangeGuard> {
        let (guard, done) = self.try_with_space(blocks, mode, work).await?;
        done.map_err(write_failed)?;
        Ok(guard)
    }

    /// Locks `blocks` and does `work` like [`Self::with_space`], but also returns the result of the
    /// disk.
    pub(super) async fn try_with_space(
        &self,
        blocks: ClaimedBlocks,
        mode: LockMode,
        work: impl Fn() -> MediumChange,
    ) -> Step<(RangeGuard, Result<(), lunar_block::Error>)> {
        loop {
            let (guard, permit) = match mode {
                LockMode::Clear => Box::pin(self.lock_to_clear(blocks.clone())).await?,
                _ => (self.lock(blocks.clone(), mode == LockMode::Exclusive).await?, None),
            };
            let (guard, done) = self.change(guard, work()).await?;
            if !self.must_hold(&done) {
                self.end_hold();
                return Ok((guard, done));
            }
            drop(permit);
            Box::pin(self.wait_for_space(guard, blocks.clone())).await?;
        }
    }

    /// Writes `new` over `old`, which was read under `guard`. Returns `None` if there was no free
    /// space: the blocks are as before and were released, and the command must begin anew.
    pub(super) async fn replace(
        &self,
        guard: RangeGuard,
        range: LbaRange,
        old: Bytes,
        new: Bytes,
        durable: bool,
    ) -> Step<Option<()>> {
        let (guard, done) =
            self.change(guard, self.write_work(range, new.clone(), durable)).await?;
        lunar_net::count_moved(new.len());
        let Err(error) = done else {
            self.end_hold();
            return Ok(Some(()));
        };
        if error.kind != ErrorKind::NoSpace || !self.may_hold_writes() {
            self.end_hold();
            return Err(Box::pin(self.write_failed_at(guard, range, &new, error)).await);
        }
        // Blocks to which `new` was written are allocated; the others have not changed.
        let old_bytes = old.len();
        let (guard, undone) = self.change(guard, self.write_work(range, old, false)).await?;
        lunar_net::count_moved(old_bytes);
        match undone {
            Err(error) if error.kind != ErrorKind::NoSpace => Err(write_failed(error)),
            _ => {
                Box::pin(self.wait_for_space(guard, range.into())).await?;
                Ok(None)
            }
        }
    }

    /// True when the unit holds writes for which there is no free space.
    pub(super) fn may_hold_writes(&self) -> bool {
        self.unit.options().out_of_space == OutOfSpace::Hold
    }

    /// True when a change failed for lack of space and is to be tried again.
    pub(super) fn must_hold(&self, done: &Result<(), lunar_block::Error>) -> bool {
        done.as_ref().is_err_and(|error| error.kind == ErrorKind::NoSpace) && self.may_hold_writes()
    }

    /// Releases `guard` and waits until the write is to be tried again.
    async fn wait_for_space(&self, guard: RangeGuard, blocks: ClaimedBlocks) -> Step<()> {
        self.begin_hold(blocks)?;
        drop(guard);
        if let Some(entry) = &self.entry {
            entry.has_begun.store(false, Relaxed);
        }
        self.abort.unless(tokio::time::sleep(HOLD_INTERVAL)).await?;
        self.check_generation()
    }

    /// Makes later writes of the nexus wait. To be called while the blocks are still locked.
    pub(super) fn begin_hold(&self, blocks: ClaimedBlocks) -> Step<()> {
        let mut held = self.held();
        if held.is_none() {
            *held = Some(self.unit.hold(self.nexus, blocks).ok_or(Stop::Busy)?);
        }
        Ok(())
    }

    /// Lets later writes of the nexus continue.
    pub(super) fn end_hold(&self) {
        drop(self.held().take());
    }

    /// True if an earlier write of the nexus waits for free space and covers some of these blocks.
    pub(super) fn is_behind_held(&self, blocks: &ClaimedBlocks) -> bool {
        self.unit.holds_writes()
            && self.unit.is_behind_held(self.nexus, blocks, self.held().as_ref())
    }

    /// Waits until no held write of the nexus covers some of these blocks. The command locks no
    /// blocks meanwhile, and counts as a waiting write.
    pub(super) async fn wait_behind_held(&self, blocks: ClaimedBlocks) -> Step<()> {
        self.begin_hold(blocks.clone())?;
        let Some(held) = self.held().take() else { return Ok(()) };
        self.abort.unless(held.wait_until_first(self.nexus, &blocks)).await?;
        *self.held() = Some(held);
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Option<HeldWriteGuard>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins `work` and waits for it. If the command is aborted meanwhile, I/O that the operating
    /// system has not begun is cancelled; the rest is awaited briefly, and then detached while its
    /// range stays blocked for readers.
    pub(super) async fn change(
        &self,
        guard: RangeGuard,
        work: MediumChange,
    ) -> Step<(RangeGuard, Result<(), lunar_block::Error>)> {
        self.abort.check()?;
        let owner = self.memory.buffers.owner();
        if self.unit.detached_writes.are_too_many(owner) {
            return Err(Stop::Busy);
        }
        let mut change = TrackedChange::new(owner, self.abort.io_context(owner), work);
        let ended = self.abort.unless(change.ended()).await;
        match ended {
            Ok(done) => {
                let has_no_space = |error: &Error| error.kind == ErrorKind::NoSpace;
                if done.as_ref().is_err_and(has_no_space) && !self.may_hold_writes() {
                    self.unit.observe_lack_of_space();
                }
                Ok((guard, done))
            }
            Err(aborted) => {
                let finished = self.unit.finish_or_detach(guard, change).await;
                finished.ok_or(Stop::from(aborted))
            }
        }
    }
}

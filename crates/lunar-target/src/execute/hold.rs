//! Changes of the medium, and their handling when there is no room.
//!
//! If the unit is to hold writes, a write that finds no room is tried again until there is some, or
//! it is aborted. It holds no blocks between two tries: there may be no room for hours, and
//! commands of other initiators that need some of the blocks exclusively would wait as long, though
//! these blocks may be allocated. The write begins anew with each try, and is judged again: an
//! initiator that was shut out meanwhile writes nothing more. A long operation that begins
//! overtakes it.
//!
//! Later commands that write some of these blocks may come in between if they belong to another
//! nexus: commands of two initiators are only ordered when one initiator sends its command after
//! the other's has ended. Commands of the same nexus wait until the held one has ended
//! ([`HeldWriteGuard`]): an initiator may send two writes to the same blocks one after the other,
//! and data that a try has written before it found no room must not overwrite the second one's. The
//! second write is thus acknowledged after the first, and its data stay. Writes that were at the
//! disk at the same time as the first try are not ordered: each may have come last there as well.
//!
//! A command that reads and writes its blocks atomically begins each try by reading. Data that it
//! has written in a try that found no room is replaced with the old data before its blocks are
//! released, so that no other command reads a part of it.
//!
//! [`HeldWriteGuard`]: crate::room::Held

#[cfg(test)]
mod tests;

use super::{Run, Step, Stop, write_failed};
use crate::detached_writes::{MediumChange, TrackedChange};
use crate::ranges::{ClaimedBlocks, RangeGuard};
use crate::room::{HOLD_INTERVAL, HeldWriteGuard, OutOfSpace};
use bytes::Bytes;
use lunar_block::ErrorKind;
use lunar_scsi::plan::LbaRange;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

/// Mode in which a change locks its blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Hold {
    /// Shared with other writers.
    Shared,
    Alone,
    /// Shared with other writers, and with the permit to deallocate or zero.
    ToClear,
}

impl Run<'_> {
    /// Locks `blocks` and does `work`; returns the lock.
    pub(super) async fn with_room(
        &self,
        blocks: ClaimedBlocks,
        hold: Hold,
        work: impl Fn() -> MediumChange,
    ) -> Step<RangeGuard> {
        let (guard, done) = self.try_with_room(blocks, hold, work).await?;
        done.map_err(write_failed)?;
        Ok(guard)
    }

    /// Locks `blocks` and does `work` like [`Self::with_room`], but also returns the result of the
    /// disk.
    pub(super) async fn try_with_room(
        &self,
        blocks: ClaimedBlocks,
        hold: Hold,
        work: impl Fn() -> MediumChange,
    ) -> Step<(RangeGuard, Result<(), lunar_block::Error>)> {
        loop {
            let (guard, permit) = match hold {
                Hold::ToClear => Box::pin(self.lock_to_clear(blocks.clone())).await?,
                _ => (self.lock(blocks.clone(), hold == Hold::Alone).await?, None),
            };
            let (guard, done) = self.change(guard, work()).await?;
            if !self.is_to_be_held(&done) {
                self.end_hold();
                return Ok((guard, done));
            }
            drop(permit);
            Box::pin(self.wait_for_room(guard, blocks.clone())).await?;
        }
    }

    /// Writes `new` over `old`, which was read under `guard`. Returns `None` if there was no room:
    /// the blocks are as before and were released, and the command must begin anew.
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
        if error.kind != ErrorKind::NoSpace || !self.holds() {
            self.end_hold();
            return Err(Box::pin(self.write_failed_at(guard, range, &new, error)).await);
        }
        // Blocks to which `new` was written have room; the others have not changed.
        let old_bytes = old.len();
        let (guard, undone) = self.change(guard, self.write_work(range, old, false)).await?;
        lunar_net::count_moved(old_bytes);
        match undone {
            Err(error) if error.kind != ErrorKind::NoSpace => Err(write_failed(error).into()),
            _ => {
                Box::pin(self.wait_for_room(guard, range.into())).await?;
                Ok(None)
            }
        }
    }

    /// True when the unit is to hold writes that find no room.
    pub(super) fn holds(&self) -> bool {
        self.unit.options().out_of_space == OutOfSpace::Hold
    }

    pub(super) fn is_to_be_held(&self, done: &Result<(), lunar_block::Error>) -> bool {
        done.as_ref().is_err_and(|error| error.kind == ErrorKind::NoSpace) && self.holds()
    }

    /// Releases `guard` and waits until the write is to be tried again.
    async fn wait_for_room(&self, guard: RangeGuard, blocks: ClaimedBlocks) -> Step<()> {
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

    pub(super) fn end_hold(&self) {
        drop(self.held().take());
    }

    /// True if an earlier write of the nexus that waits for room covers some of these blocks.
    pub(super) fn is_behind_held(&self, blocks: &ClaimedBlocks) -> bool {
        self.unit.holds_writes()
            && self.unit.is_behind_held(self.nexus, blocks, self.held().as_ref())
    }

    /// Waits until no such write is ahead. The command holds no blocks meanwhile, and counts among
    /// the waiting writes.
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

    /// Begins `work` and waits for it. If the command is aborted meanwhile, parts that the system
    /// has not begun are cancelled; the rest is waited for briefly, and then detached with its
    /// range blocked for readers.
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
            Ok(done) => Ok((guard, done)),
            Err(aborted) => {
                let finished = self.unit.finish_or_leave(guard, change).await;
                finished.ok_or(Stop::from(aborted))
            }
        }
    }
}

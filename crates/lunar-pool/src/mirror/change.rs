//! Changes of blocks: writes, deallocation, zeroes.

use super::Mirror;
use super::bounded::{FailedMember, LimitFrom, MemberFailure, MemberWork, run};
use super::change_queue::{ChangeQueue, ChangeTurn};
use super::member::MirrorMember;
use super::membership::{note_failures, with_detached_changes};
use super::slots::MemberSlot;
use crate::member_io::member_failed;
use bytes::Bytes;
use lunar_block::{BlockRange, Error, ErrorKind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// A change of blocks.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Writes data.
    Write { from: Bytes, durable: bool },
    /// Deallocates blocks.
    Unmap { durable: bool },
    /// Writes zeroes.
    Zero { may_unmap: bool, durable: bool },
}

/// The members to which a change is sent.
#[derive(Clone, Debug)]
pub(super) enum Targets {
    /// All members that receive changes.
    All,
    /// One member, if it is current: it gets the data that the others have.
    One(Arc<MirrorMember>),
    /// The current members that miss a region of the change.
    Lacking,
}

impl Targets {
    /// True if a change of the regions `first..=last` is sent to this member.
    fn has(&self, one: &Arc<MirrorMember>, (first, last): (u32, u32)) -> bool {
        match self {
            Self::All => one.receives_changes(),
            Self::One(member) => Arc::ptr_eq(one, member) && one.is_current(),
            Self::Lacking => one.is_current() && !one.holds(first, last),
        }
    }
}

impl Change {
    fn start(&self, member: &Arc<MirrorMember>, range: BlockRange) -> MemberWork {
        match self.clone() {
            Self::Write { from, durable } => member.write(range, from, durable),
            Self::Unmap { durable } => {
                member.change(range, move |device, range| match device.sparse() {
                    Some(sparse) => sparse.unmap(range, durable),
                    None => Box::pin(std::future::ready(Err(not_sparse(device.name())))),
                })
            }
            Self::Zero { may_unmap, durable } => {
                member.change(range, move |device, range| match device.sparse() {
                    Some(sparse) => sparse.write_zeroes(range, may_unmap, durable),
                    None => Box::pin(std::future::ready(Err(not_sparse(device.name())))),
                })
            }
        }
    }
}

pub(super) fn not_sparse(device: &str) -> Error {
    Error::new(ErrorKind::Medium, device, "it does not support deallocation")
}

impl Mirror {
    /// Changes blocks on all members; returns when no failure of a single member can lose the
    /// change.
    pub(super) async fn change(
        self: Arc<Self>,
        range: BlockRange,
        change: Change,
    ) -> Result<(), Error> {
        self.foreground.fetch_add(1, SeqCst);
        if let Change::Write { .. } = change {
            let start = move |member: &Arc<MirrorMember>| change.start(member, range);
            return self.change_with(range, Targets::All, start).await;
        }
        let (mut lba, end) = (range.lba, range.lba + range.count);
        while lba < end {
            lba = self.clear_first(BlockRange::new(lba, end - lba), &change).await?;
        }
        Ok(())
    }

    /// Deallocates or zeroes the first piece of `range`. Returns the first block behind it.
    pub(super) async fn clear_first(
        self: &Arc<Self>,
        range: BlockRange,
        change: &Change,
    ) -> Result<u64, Error> {
        let deallocates = !matches!(change, Change::Zero { may_unmap: false, .. });
        let length = self.clears.of(deallocates);
        let block_bytes = u64::from(self.geometry().block_bytes);
        // Pieces end at multiples of their length: what a member deallocates as a whole is not cut.
        let piece_blocks = length.bytes() / block_bytes;
        let piece =
            BlockRange::new(range.lba, range.count.min(piece_blocks - range.lba % piece_blocks));
        let sent = Mutex::new(Instant::now());
        let done = self.change_with(piece, Targets::All, |member| {
            *sent.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            change.start(member, piece)
        });
        done.await?;
        let sent = *sent.lock().unwrap_or_else(PoisonError::into_inner);
        length.ended(piece.count * block_bytes, sent.elapsed(), self.options.member_wait);
        Ok(piece.lba + piece.count)
    }

    /// Changes blocks on some members, in the order of overlapping changes.
    pub(super) async fn change_with(
        self: &Arc<Self>,
        range: BlockRange,
        targets: Targets,
        start: impl Fn(&Arc<MirrorMember>) -> MemberWork + Send + Sync,
    ) -> Result<(), Error> {
        let Some(transfer) = ChangeQueue::enter_transfer(&self.queue, range).await else {
            let what = "the command was cancelled";
            return Err(Error::new(ErrorKind::Medium, &*self.name, what).at(range));
        };
        self.change_in_turn(&transfer.turn, range, targets, start).await
    }

    pub(super) async fn change_in_turn(
        self: &Arc<Self>,
        _turn: &ChangeTurn,
        range: BlockRange,
        targets: Targets,
        start: impl Fn(&Arc<MirrorMember>) -> MemberWork + Send + Sync,
    ) -> Result<(), Error> {
        while !self.attempt(range, &targets, &start).await? {}
        Ok(())
    }

    /// True if a current member misses a region of `range`.
    pub(super) fn is_lacking(&self, range: BlockRange) -> bool {
        let (first, last) = self.intents.span(range);
        let all = self.slots.all();
        let mut members = all.iter().filter_map(MemberSlot::member);
        members.any(|one| one.is_current() && !one.holds(first, last))
    }

    /// Attempts a change. Returns false if it has to be attempted again: it was not sent, because a
    /// member was left out or the states of the members had to be recorded first, or no member that
    /// has it is left.
    async fn attempt(
        self: &Arc<Self>,
        range: BlockRange,
        targets: &Targets,
        start: &(impl Fn(&Arc<MirrorMember>) -> MemberWork + Send + Sync),
    ) -> Result<bool, Error> {
        let roster = self.roster.read().await;
        self.refuse_closed(roster.is_closed)?;
        if roster.is_unrecorded {
            drop(roster);
            self.record().await?;
            return Ok(false);
        }
        let all = self.slots.all();
        let current = all.iter().filter_map(MemberSlot::member).filter(|one| one.is_current());
        let late = with_detached_changes(current.clone(), self.options.member_wait);
        if !late.is_empty() {
            drop(roster);
            let late: Vec<_> = late.into_iter().map(|late| late.member).collect();
            self.leave_out(&late).await?;
            return Ok(false);
        }
        if Self::slow_member(&all).is_some() {
            drop(roster);
            self.leave_out_slow().await?;
            return Ok(false);
        }
        let mut failed = match self.intents.begin(range) {
            true => Vec::new(),
            false => match self.mark(range, current.cloned().collect()).await {
                Ok(failed) => failed,
                Err(error) => {
                    self.end_change(range, false);
                    return Err(error);
                }
            },
        };
        let is_sent = failed.is_empty();
        if is_sent {
            self.note_missed(range, &all);
            // A single member has its limit from the beginning: nobody else holds up the others.
            let from = match targets {
                Targets::All => LimitFrom::Success,
                Targets::One(_) | Targets::Lacking => LimitFrom::Begin,
            };
            let span = self.intents.span(range);
            let members = all.iter().filter_map(MemberSlot::member);
            let work = members.filter(|one| targets.has(one, span));
            let work = work.map(|member| (Arc::clone(member), start(member)));
            failed = run(self.options.member_wait, from, work).await;
        }
        self.end_change(range, !failed.is_empty());
        drop(roster);
        let is_done = failed.is_empty() || self.leave_out_failed(Some(range), failed).await?;
        Ok(is_sent && is_done)
    }

    /// Marks the regions of a change on the current members. Changes of other users wait for the
    /// same page.
    async fn mark(
        self: &Arc<Self>,
        range: BlockRange,
        current: Vec<Arc<MirrorMember>>,
    ) -> Result<Vec<FailedMember>, Error> {
        let mirror = Arc::clone(self);
        let marked = async move { mirror.intents.mark(range, &current).await };
        self.run_for_all(marked).await
    }

    /// Records for the stale members that they miss a change.
    fn note_missed(&self, range: BlockRange, all: &[MemberSlot]) {
        let (first, last) = self.intents.span(range);
        let members = all.iter().filter_map(MemberSlot::member);
        members.filter(|member| !member.receives_changes()).for_each(|member| {
            member.add_missing_change(first, last);
        });
    }

    /// Ends a change. After a failure the marks stay until the failed members are left out.
    fn end_change(&self, range: BlockRange, has_failed: bool) {
        if has_failed {
            self.failures_pending.fetch_add(1, SeqCst);
        }
        self.intents.end(range);
    }

    /// Leaves failed members out. If no other one is left, returns false if they were only late, as
    /// the last member may be, and else fails. A late member that is kept has ended its work.
    pub(super) async fn leave_out_failed(
        self: &Arc<Self>,
        range: Option<BlockRange>,
        failed: Vec<FailedMember>,
    ) -> Result<bool, Error> {
        note_failures(&failed);
        let members: Vec<_> = failed.iter().map(|failed| Arc::clone(&failed.member)).collect();
        let left = self.leave_out(&members).await;
        // If the states could not be recorded, the marks stay because of that. If the pool is being
        // closed, nobody leaves the members out, and the marks stay for the next opening.
        if left.is_ok() || self.is_unrecorded.load(SeqCst) {
            self.failures_pending.fetch_sub(1, SeqCst);
        }
        match left {
            Ok(true) => Ok(true),
            Ok(false) if failed.iter().all(|failed| failed.failure.is_late()) => Ok(false),
            Ok(false) => Err(self.all_failed(range, failed)),
            Err(error) => {
                let what = format!("a member failed, and this could not be recorded: {error}");
                Err(Error { range, ..Error::new(error.kind, &*self.name, what) }.because(error))
            }
        }
    }

    /// Returns the error for an operation that no member has done.
    pub(super) fn all_failed(&self, range: Option<BlockRange>, failed: Vec<FailedMember>) -> Error {
        let mut other = None;
        for failed in failed {
            match failed.failure {
                MemberFailure::Device(error) => return member_failed(&self.name, range, error),
                failure => other = Some(failure),
            }
        }
        let what = match other {
            Some(MemberFailure::Lost) | None => {
                "acknowledged writes that were not flushed may be lost".to_owned()
            }
            Some(failure) => failure.to_string(),
        };
        Error { range, ..Error::new(ErrorKind::Medium, &*self.name, what) }
    }
}

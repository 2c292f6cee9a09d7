//! Range locks, which keep foreign writes out between the read and the write of a COMPARE AND WRITE
//! or ORWRITE.
//!
//! Writes share; the read-modify-write commands exclude every overlapping write. Among claims that
//! overlap, owners take turns, and those of one owner are granted in order of arrival. Therefore no
//! claim starves, and many claims of one owner delay another owner only by one of them. A command
//! that holds a claim for which another owner waits is [awaited](crate::awaited). If other owners
//! wait for something else that a command has, the claims of its own owner that keep it waiting are
//! awaited as well ([`RangeQueued::mark_own_blockers_awaited`]).
//!
//! Reads take no lock, but they wait for ranges that are blocked for readers: a detached write
//! still changes blocks there.

mod blocks;
mod claim_index;
mod claims;
#[cfg(test)]
mod fairness;
mod interval_tree;
#[cfg(test)]
mod model;
mod owner_queue;
mod spare;
#[cfg(test)]
mod tests;

use crate::abort::AbortSignal;
use claims::{Blockers, Claim, ClaimOwner, Claims, Grants, RemovedClaim};
use lunar_block::MemoryOwner;
use lunar_scsi::plan::LbaRange;
use std::cell::Cell;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

pub(crate) use blocks::ClaimedBlocks;

/// The locks of one unit, or of one session at a unit.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    /// The claims. `None` while there are none, unless [`keeps_claims`](Self::keeps_claims) is set:
    /// there may be thousands of sessions, each with locks of its own at thousands of units.
    claims: Mutex<Option<Box<Claims>>>,
    /// True when the memory of a few claims is kept while there are none.
    keeps_claims: bool,
    /// Number of current [`RangeShare`]s of everything times [`SHARE`], in addition to `claims`;
    /// plus [`EXCLUSIVE`] while a claim is exclusive, held or waiting. Changed under the lock of
    /// the claims, except by shares.
    shares: AtomicUsize,
    /// Number of exclusive claims so far.
    exclusive_begun: AtomicU64,
    /// Number of held claims that block readers; while it is 0, reads need not look.
    blocks_readers: AtomicUsize,
    /// Notified when such a claim was released.
    readable: Notify,
}

thread_local! {
    /// Memory of the claims last released in this thread, for the next lock: ORDERED commands that
    /// need not wait allocate nothing.
    static SPARE_CLAIMS: Cell<Option<Box<Claims>>> = const { Cell::new(None) };
}

/// An empty set of claims, in memory that other locks needed before.
fn spare_claims() -> Box<Claims> {
    SPARE_CLAIMS.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Keeps the memory of claims that have ended, if there were few.
fn keep_spare(claims: Box<Claims>) {
    if claims.are_small() {
        let _ = SPARE_CLAIMS.try_with(|spare| spare.set(Some(claims))); // the thread may end
    }
}

/// Flag in `shares`: sharing needs a position in the queue.
const EXCLUSIVE: usize = 1;
/// Unit of `shares`: one share.
const SHARE: usize = 2;

/// A held range; dropping it lets the next claim in.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Arc<RangeLocks>,
    id: u64,
    slot: u32,
}

/// A share of all ranges, at the cost of two additions: exclusive claims of any range wait until it
/// is dropped.
#[derive(Debug)]
pub(crate) struct RangeShare<L: Deref<Target = RangeLocks>> {
    locks: L,
}

/// A position in the queue, taken at the time of the call; the range is held once granted.
#[derive(Debug)]
pub(crate) struct RangeQueued {
    guard: RangeGuard,
    wait: Option<oneshot::Receiver<()>>,
}

/// A new claim that is neither held nor waits yet.
struct NewClaim {
    claim: Claim,
    blockers: Blockers,
    has_to_wait: bool,
}

/// Error: no further claim of this owner may wait.
#[derive(Debug)]
pub(crate) struct TooManyWaiting;

/// Fence around work on behalf of other units' tasks: after shutting an initiator out, a caller can
/// wait until that work is done.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    locks: Arc<RangeLocks>,
}

impl Fence {
    const ALL: LbaRange = LbaRange { lba: 0, count: 1 };

    /// Waits for a guard that a command of this owner is to hold during the work.
    pub(crate) async fn share(
        &self,
        owner: &Arc<MemoryOwner>,
        command: &AbortSignal,
    ) -> RangeGuard {
        let queued = {
            let mut locked = self.locks.lock_claims();
            let claims = locked.get_or_insert_with(spare_claims);
            let owner = Some(Arc::clone(owner));
            let new = self.locks.new_claim(claims, owner, Self::ALL.into(), false);
            self.locks.add(locked, new, Some(command))
        };
        queued.granted().await
    }

    /// Waits until all current work is done.
    pub(crate) async fn wait(&self) {
        drop(self.locks.lock(Self::ALL, true).await);
    }
}

impl RangeLocks {
    /// Creates locks that keep the memory of a few claims, for units: a claim then allocates
    /// nothing.
    pub(crate) fn of_unit() -> Self {
        Self { keeps_claims: true, ..Self::default() }
    }

    /// Locks `range`, shared with other writers, or exclusively.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        range: impl Into<ClaimedBlocks>,
        exclusive: bool,
    ) -> RangeGuard {
        self.queue(range, exclusive).granted().await
    }

    /// Locks `range` for a command of an initiator. Fails if the claim would have to wait and too
    /// many claims of this owner, or of all owners, wait already.
    pub(crate) async fn lock_for(
        self: &Arc<Self>,
        owner: &Arc<MemoryOwner>,
        command: &AbortSignal,
        range: impl Into<ClaimedBlocks>,
        exclusive: bool,
    ) -> Result<RangeGuard, TooManyWaiting> {
        Ok(self.queue_for_command(owner, Some(command), range, exclusive)?.granted().await)
    }

    /// Takes a position in the queue now; the grant may be awaited later.
    pub(crate) fn queue(
        self: &Arc<Self>,
        range: impl Into<ClaimedBlocks>,
        exclusive: bool,
    ) -> RangeQueued {
        let mut locked = self.lock_claims();
        let claims = locked.get_or_insert_with(spare_claims);
        let new = self.new_claim(claims, None, range.into(), exclusive);
        self.add(locked, new, None)
    }

    /// Takes a position in the queue under the limits of [`lock_for`](Self::lock_for).
    pub(crate) fn queue_for_command(
        self: &Arc<Self>,
        owner: &Arc<MemoryOwner>,
        command: Option<&AbortSignal>,
        range: impl Into<ClaimedBlocks>,
        exclusive: bool,
    ) -> Result<RangeQueued, TooManyWaiting> {
        let mut locked = self.lock_claims();
        let claims = locked.get_or_insert_with(spare_claims);
        let new = self.new_claim(claims, Some(Arc::clone(owner)), range.into(), exclusive);
        if new.has_to_wait && !claims.may_wait(owner) {
            if exclusive {
                self.end_exclusive_claim(claims);
            }
            return Err(TooManyWaiting);
        }
        Ok(self.add(locked, new, command))
    }

    /// Locks `range`, shared with other writers, unless the claim has to wait or might have to: no
    /// waiting claim of any owner is overtaken.
    pub(crate) fn try_lock_shared(self: &Arc<Self>, range: LbaRange) -> Option<RangeGuard> {
        let mut locked = self.lock_claims();
        let claims = locked.get_or_insert_with(spare_claims);
        let claim = claims.new_claim(None, range.into(), false);
        if claims.excludes_shared(&claim) {
            return None;
        }
        let id = claim.id;
        Some(self.guard(id, claims.hold(claim)))
    }

    /// Locks `range` at once, even if other claims hold it: later and waiting claims wait for it.
    pub(crate) fn at_head(self: &Arc<Self>, range: LbaRange) -> RangeQueued {
        let mut locked = self.lock_claims();
        let claims = locked.get_or_insert_with(spare_claims);
        let claim = claims.new_claim(None, range.into(), true);
        self.begin_exclusive_claims(claims, 1);
        let id = claim.id;
        RangeQueued { guard: self.guard(id, claims.hold_at_head(claim)), wait: None }
    }

    /// Creates a claim, and counts its blockers.
    fn new_claim(
        &self,
        claims: &mut Claims,
        owner: ClaimOwner,
        blocks: ClaimedBlocks,
        exclusive: bool,
    ) -> NewClaim {
        let claim = claims.new_claim(owner, blocks, exclusive);
        if exclusive {
            self.begin_exclusive_claims(claims, 1);
        }
        let blockers = claims.blockers(&claim);
        let has_to_wait = blockers.all > 0 || (exclusive && self.is_shared());
        NewClaim { claim, blockers, has_to_wait }
    }

    /// Adds the claim of a command to the claims, and unlocks these.
    fn add(
        self: &Arc<Self>,
        mut locked: MutexGuard<'_, Option<Box<Claims>>>,
        new: NewClaim,
        command: Option<&AbortSignal>,
    ) -> RangeQueued {
        let claims = locked.get_or_insert_with(spare_claims);
        let id = new.claim.id;
        if !new.has_to_wait {
            let slot = claims.hold(new.claim);
            claims.set_command(slot, command);
            return RangeQueued { guard: self.guard(id, slot), wait: None };
        }
        let (slot, granted) = claims.wait(new.claim, new.blockers);
        claims.set_command(slot, command);
        let awaited = claims.take_awaited();
        drop(locked);
        drop(awaited);
        RangeQueued { guard: self.guard(id, slot), wait: Some(granted) }
    }

    fn guard(self: &Arc<Self>, id: u64, slot: u32) -> RangeGuard {
        RangeGuard { locks: Arc::clone(self), id, slot }
    }

    /// Shares all ranges with all other sharers, unless there is an exclusive claim: then a place
    /// in the queue has to be taken.
    pub(crate) fn try_share<L: Deref<Target = Self>>(locks: L) -> Option<RangeShare<L>> {
        if locks.shares.load(SeqCst) & EXCLUSIVE != 0 {
            return None;
        }
        let before = locks.shares.fetch_add(SHARE, SeqCst);
        // Wakes claims that counted it as a share when dropped.
        let share = RangeShare { locks };
        (before & EXCLUSIVE == 0).then_some(share)
    }

    fn is_shared(&self) -> bool {
        self.shares.load(SeqCst) >= SHARE
    }

    /// Counts exclusive claims. From the first one on, sharing needs a position in the queue.
    fn begin_exclusive_claims(&self, claims: &mut Claims, count: usize) {
        claims.exclusive_claims += count;
        if claims.exclusive_claims > 0 {
            self.shares.fetch_or(EXCLUSIVE, SeqCst);
        }
        // Counted after the flag is set: see `exclusive_mark`.
        self.exclusive_begun.fetch_add(count as u64, SeqCst);
    }

    /// Counts one exclusive claim less. After the last one sharing is free again.
    fn end_exclusive_claim(&self, claims: &mut Claims) {
        claims.exclusive_claims -= 1;
        if claims.exclusive_claims == 0 {
            self.shares.fetch_and(!EXCLUSIVE, SeqCst);
        }
    }

    /// A mark that stays the same as long as there is no exclusive claim of any range. `None` if
    /// there is one now, held or waiting.
    pub(crate) fn exclusive_mark(&self) -> Option<u64> {
        // In this order: a claim that is counted has set the flag.
        let begun = self.exclusive_begun.load(SeqCst);
        (self.shares.load(SeqCst) & EXCLUSIVE == 0).then_some(begun)
    }

    /// Grants the claims that have no blockers any more, now that `removed` is gone. Their waiters
    /// are woken when the result is dropped: after `claims` is unlocked.
    fn grant(&self, claims: &mut Claims, removed: Option<&RemovedClaim>) -> Grants {
        if claims.waiting == 0 {
            return Grants::default();
        }
        claims.grant(removed, self.is_shared())
    }

    /// True when no range is blocked for readers.
    pub(crate) fn are_readable(&self) -> bool {
        self.blocks_readers.load(SeqCst) == 0
    }

    /// Waits until no block of `range` is blocked for readers.
    pub(crate) async fn wait_until_readable(&self, range: LbaRange) {
        let blocks = range.into();
        while !self.are_readable() {
            let mut readable = pin!(self.readable.notified());
            readable.as_mut().enable();
            // Claims that block readers are exclusive.
            let blocks_readers =
                |claims: &Claims| claims.any_exclusive_held(&blocks, |held| held.blocks_readers);
            if !self.lock_claims().as_deref().is_some_and(blocks_readers) {
                return;
            }
            readable.await;
        }
    }

    /// Blocks readers of the pieces of copies that are being written now.
    pub(crate) fn block_readers_of_copies(&self) {
        let mut locked = self.lock_claims();
        let Some(claims) = locked.as_deref_mut() else { return };
        let is_piece = |slot: &u32| claims.claim(*slot).of_copy;
        let pieces: Vec<u32> = claims.held.iter().copied().filter(is_piece).collect();
        for slot in pieces {
            self.block_readers(claims, slot);
        }
        let awaited = claims.take_awaited();
        drop(locked);
        drop(awaited);
    }

    /// Makes the held claim in a slot block readers.
    fn block_readers(&self, claims: &mut Claims, slot: u32) {
        let blocks_readers = claims.block_readers(slot);
        self.blocks_readers.fetch_add(blocks_readers.claims, SeqCst);
        self.begin_exclusive_claims(claims, blocks_readers.were_shared);
    }

    fn lock_claims(&self) -> MutexGuard<'_, Option<Box<Claims>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the claims out if there are none, unless their memory is kept.
    fn take_unused(&self, locked: &mut Option<Box<Claims>>) -> Option<Box<Claims>> {
        locked.take_if(|claims| !self.keeps_claims && claims.are_none())
    }
}

impl RangeGuard {
    /// Makes later claims and reads wait until this is released. Existing sharers of the range
    /// continue.
    pub(crate) fn block_readers(&self) {
        let mut locked = self.locks.lock_claims();
        let Some(claims) = locked.as_deref_mut() else { return };
        if claims.held_mut(self.id, self.slot).is_some() {
            self.locks.block_readers(claims, self.slot);
        }
        let awaited = claims.take_awaited();
        drop(locked);
        drop(awaited);
    }

    /// Marks the range as a piece of a copy.
    pub(crate) fn of_copy(self) -> Self {
        let mut locked = self.locks.lock_claims();
        let claims = locked.as_deref_mut();
        if let Some(claim) = claims.and_then(|claims| claims.held_mut(self.id, self.slot)) {
            claim.of_copy = true;
        }
        drop(locked);
        self
    }
}

impl<L: Deref<Target = RangeLocks>> RangeShare<L> {
    /// The locks whose ranges are all shared.
    pub(crate) fn locks(&self) -> &L {
        &self.locks
    }
}

impl RangeQueued {
    /// The locks that the range belongs to.
    pub(crate) fn locks(&self) -> &Arc<RangeLocks> {
        &self.guard.locks
    }

    /// True when the range is held without waiting.
    pub(crate) fn is_granted(&self) -> bool {
        self.wait.is_none()
    }

    /// Makes the commands [awaited](crate::awaited) whose claims of the same owner keep this one
    /// waiting, until they have released them.
    pub(crate) fn mark_own_blockers_awaited(&self) {
        if self.is_granted() {
            return;
        }
        let mut locked = self.guard.locks.lock_claims();
        let Some(claims) = locked.as_deref_mut() else { return };
        claims.mark_own_blockers_awaited(self.guard.slot);
        let awaited = claims.take_awaited();
        drop(locked);
        drop(awaited);
    }

    /// Waits until the range is held.
    pub(crate) async fn granted(self) -> RangeGuard {
        if let Some(granted) = self.wait {
            let _ = granted.await; // nothing is sent: the grant drops the sender
        }
        self.guard
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut locked = self.locks.lock_claims();
        let Some(claims) = locked.as_deref_mut() else { return };
        let Some(removed) = claims.remove(self.id, self.slot) else { return };
        if removed.claim.exclusive {
            self.locks.end_exclusive_claim(claims);
        }
        let grants = self.locks.grant(claims, Some(&removed));
        let unused = self.locks.take_unused(&mut locked);
        drop(locked);
        drop(grants);
        if let Some(claims) = unused {
            keep_spare(claims);
        }
        if removed.claim.blocks_readers {
            self.locks.blocks_readers.fetch_sub(1, SeqCst);
            self.locks.readable.notify_waiters();
        }
    }
}

impl<L: Deref<Target = RangeLocks>> Drop for RangeShare<L> {
    fn drop(&mut self) {
        if self.locks.shares.fetch_sub(SHARE, SeqCst) == SHARE | EXCLUSIVE {
            let mut locked = self.locks.lock_claims();
            let claims = locked.as_deref_mut();
            let grants = claims.map(|claims| self.locks.grant(claims, None));
            drop(locked);
            drop(grants);
        }
    }
}

//! The claims on ranges of one unit: those that are held and those that wait.
//!
//! A waiting claim counts the claims that keep it out: the held ones and the earlier waiting ones
//! that exclude it. When a claim ends, one look at each waiting claim is enough to find those that
//! are granted, however many are held.

use block::MemoryOwner;
use scsi::plan::LbaRange;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// How many claims of one owner may wait at a unit. The end of any claim costs time for each of
/// them, whosever it is.
pub(super) const OWNER_WAITING_MAX: usize = 1024;
/// How many claims of all owners together may wait at a unit. Claims without an owner, which other
/// limits bound, are not counted.
pub(super) const WAITING_MAX: usize = 8192;

/// Blocks that somebody holds or waits for.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) id: u64,
    /// Where `positions` has it, once it is held or waits.
    pub(super) slot: u32,
    pub(super) blocks: ClaimedBlocks,
    pub(super) exclusive: bool,
    /// Reads wait for it as well.
    pub(super) secluded: bool,
    /// A piece of a third-party copy.
    pub(super) of_copy: bool,
}

/// The blocks of one claim.
#[derive(Clone, Debug)]
pub(crate) enum ClaimedBlocks {
    /// One range.
    Range(LbaRange),
    /// Ranges that are not empty, in order and apart from each other.
    List(Arc<[LbaRange]>),
}

/// A claim that waits.
#[derive(Debug)]
pub(super) struct WaitingClaim {
    pub(super) claim: Claim,
    /// Held claims and earlier waiting ones that exclude this one.
    pub(super) blockers: usize,
    /// `None`: the limits are not for this claim.
    pub(super) owner: Option<ClaimOwner>,
    /// Dropped when the claim is granted, which wakes the receiver.
    _grant: oneshot::Sender<()>,
}

/// The owner of a claim: connections of one address, and of these the ones that have proven to be
/// the same user (decision 095). Compared by identity.
#[derive(Debug)]
pub(super) struct ClaimOwner(Arc<MemoryOwner>);

/// A claim that has been removed.
#[derive(Debug)]
pub(super) struct RemovedClaim {
    pub(super) claim: Claim,
    /// Waiting claims from this position on have counted it.
    counted_from: usize,
}

/// All claims on ranges of one unit.
#[derive(Debug, Default)]
pub(super) struct Claims {
    next_id: u64,
    /// Held or waiting; while there is none, no claim excludes another.
    pub(super) exclusive_claims: usize,
    pub(super) held: Vec<Claim>,
    /// In order of arrival, which is the order of their ids.
    pub(super) waiting: VecDeque<WaitingClaim>,
    /// By slot: where a claim is in `held`, or [`NOT_HELD`].
    positions: Vec<u32>,
    free_slots: Vec<u32>,
}

/// In `positions`: the claim waits, or the slot is free.
const NOT_HELD: u32 = u32::MAX;
/// Of a claim that is not held and does not wait.
const NO_SLOT: u32 = u32::MAX;

impl Claim {
    pub(super) fn excludes(&self, other: &Self) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        (self.exclusive || other.exclusive) && self.blocks.overlap(&other.blocks)
    }

    fn is(&self, id: u64) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        self.id == id
    }
}

impl ClaimedBlocks {
    /// The blocks of several ranges, in any order.
    pub(crate) fn of(ranges: &[LbaRange]) -> Self {
        if let [range] = ranges {
            return Self::Range(*range);
        }
        let mut sorted: Vec<_> = ranges.iter().filter(|range| range.count > 0).copied().collect();
        sorted.sort_unstable_by_key(|range| range.lba);
        sorted.dedup_by(|next, last| {
            let joins = next.lba <= end(*last);
            if joins {
                last.count = end(*last).max(end(*next)) - last.lba;
            }
            joins
        });
        Self::List(sorted.into())
    }

    pub(super) fn overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Range(one), Self::Range(other)) => overlap(*one, *other),
            (Self::List(list), Self::Range(range)) | (Self::Range(range), Self::List(list)) => {
                list_overlaps(list, *range)
            }
            (Self::List(one), Self::List(other)) => {
                one.iter().any(|range| list_overlaps(other, *range))
            }
        }
    }
}

impl From<LbaRange> for ClaimedBlocks {
    fn from(range: LbaRange) -> Self {
        Self::Range(range)
    }
}

#[cfg(test)]
thread_local! {
    /// Calls of [`Claim::excludes`] and [`Claim::is`] in this thread.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn end(range: LbaRange) -> u64 {
    range.lba.saturating_add(range.count)
}

fn overlap(a: LbaRange, b: LbaRange) -> bool {
    a.count > 0 && b.count > 0 && a.lba < end(b) && b.lba < end(a)
}

/// Of a list in order only the first range that ends behind the beginning of `range` matters.
fn list_overlaps(list: &[LbaRange], range: LbaRange) -> bool {
    let first = list.partition_point(|listed| end(*listed) <= range.lba);
    list.get(first).is_some_and(|listed| overlap(*listed, range))
}

impl WaitingClaim {
    fn has_to_wait(&self, shared: bool) -> bool {
        self.blockers > 0 || (self.claim.exclusive && shared)
    }
}

impl ClaimOwner {
    fn is(&self, owner: &Arc<MemoryOwner>) -> bool {
        Arc::ptr_eq(&self.0, owner)
    }
}

impl Claims {
    /// A claim that is neither held nor waits yet.
    pub(super) fn new_claim(&mut self, blocks: ClaimedBlocks, exclusive: bool) -> Claim {
        let id = self.next_id;
        self.next_id += 1;
        Claim { id, slot: NO_SLOT, blocks, exclusive, secluded: false, of_copy: false }
    }

    /// Holds a claim that nothing keeps out; returns its slot.
    pub(super) fn hold(&mut self, mut claim: Claim) -> u32 {
        let slot = self.take_slot();
        claim.slot = slot;
        self.positions[slot as usize] = self.held.len() as u32;
        self.held.push(claim);
        slot
    }

    fn take_slot(&mut self) -> u32 {
        self.free_slots.pop().unwrap_or_else(|| {
            self.positions.push(NOT_HELD);
            self.positions.len() as u32 - 1
        })
    }

    fn free_slot(&mut self, slot: u32) {
        self.positions[slot as usize] = NOT_HELD;
        self.free_slots.push(slot);
    }

    /// The held claim in a slot.
    pub(super) fn held_mut(&mut self, slot: u32) -> Option<&mut Claim> {
        let at = *self.positions.get(slot as usize)?;
        self.held.get_mut(at as usize)
    }

    /// How many claims keep a new one out, which `exclusive_claims` counts already.
    pub(super) fn blockers(&self, new: &Claim) -> usize {
        if self.exclusive_claims == 0 {
            return 0;
        }
        let held = self.held.iter().filter(|held| held.excludes(new)).count();
        held + self.waiting.iter().filter(|waiting| waiting.claim.excludes(new)).count()
    }

    /// True if one more claim of this owner may wait.
    pub(super) fn may_wait(&self, owner: &Arc<MemoryOwner>) -> bool {
        let (mut of_owner, mut of_all) = (0, 0);
        for other in self.waiting.iter().filter_map(|waiting| waiting.owner.as_ref()) {
            of_all += 1;
            of_owner += usize::from(other.is(owner));
        }
        of_owner < OWNER_WAITING_MAX && of_all < WAITING_MAX
    }

    /// Has a claim wait for its blockers, or for those who share everything without a claim.
    /// Returns its slot, and what tells of the grant.
    pub(super) fn wait(
        &mut self,
        mut claim: Claim,
        blockers: usize,
        owner: Option<&Arc<MemoryOwner>>,
    ) -> (u32, oneshot::Receiver<()>) {
        let slot = self.take_slot();
        claim.slot = slot;
        let owner = owner.map(|owner| ClaimOwner(Arc::clone(owner)));
        let (grant, granted) = oneshot::channel();
        self.waiting.push_back(WaitingClaim { claim, blockers, owner, _grant: grant });
        (slot, granted)
    }

    /// Holds a claim in spite of all others; those that wait already wait for it, too. Returns its
    /// slot.
    pub(super) fn hold_at_head(&mut self, claim: Claim) -> u32 {
        for waiting in &mut self.waiting {
            waiting.blockers += usize::from(claim.excludes(&waiting.claim));
        }
        self.hold(claim)
    }

    /// Secludes held claims, which makes them exclusive.
    pub(super) fn seclude(&mut self, which: impl Fn(&Claim) -> bool) -> Secluded {
        let mut secluded = Secluded::default();
        for claim in self.held.iter_mut().filter(|claim| which(claim) && !claim.secluded) {
            claim.secluded = true;
            secluded.claims += 1;
            if claim.exclusive {
                continue;
            }
            claim.exclusive = true;
            secluded.were_shared += 1;
            // An exclusive claim that waits has counted it already.
            for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.claim.exclusive) {
                waiting.blockers += usize::from(claim.excludes(&waiting.claim));
            }
        }
        secluded
    }

    /// Removes a claim that is held or waits. [`grant`](Self::grant) has to follow.
    pub(super) fn remove(&mut self, id: u64, slot: u32) -> Option<RemovedClaim> {
        let at = *self.positions.get(slot as usize)? as usize;
        let removed = if self.held.get(at).is_some_and(|held| held.is(id)) {
            let claim = self.held.swap_remove(at);
            if let Some(moved) = self.held.get(at) {
                self.positions[moved.slot as usize] = at as u32;
            }
            RemovedClaim { claim, counted_from: 0 }
        } else {
            let at = self.waiting.binary_search_by_key(&id, |waiting| waiting.claim.id).ok()?;
            RemovedClaim { claim: self.waiting.remove(at)?.claim, counted_from: at }
        };
        self.free_slot(slot);
        Some(removed)
    }

    /// Lets go of `removed`, and grants the claims that nothing keeps out any more. `shared`:
    /// somebody shares everything without a claim, which keeps all exclusive ones out.
    pub(super) fn grant(&mut self, removed: Option<&RemovedClaim>, shared: bool) {
        let (mut granted, mut first_granted) = (0, 0);
        for (at, waiting) in self.waiting.iter_mut().enumerate() {
            if let Some(removed) = removed.filter(|removed| at >= removed.counted_from) {
                waiting.blockers -= usize::from(removed.claim.excludes(&waiting.claim));
            }
            if waiting.has_to_wait(shared) {
                continue;
            }
            // Those behind it have counted it and go on doing so. A waiter that is gone removes its
            // claim itself when its guard is dropped.
            self.positions[waiting.claim.slot as usize] = self.held.len() as u32;
            self.held.push(waiting.claim.clone());
            if granted == 0 {
                first_granted = at;
            }
            granted += 1;
        }
        match granted {
            0 => {}
            // Mostly one claim, the oldest: to remove it moves no other.
            1 => drop(self.waiting.remove(first_granted)),
            _ => self.waiting.retain(|waiting| waiting.has_to_wait(shared)),
        }
    }
}

/// What [`Claims::seclude`] has changed.
#[derive(Debug, Default)]
pub(super) struct Secluded {
    /// Claims that are secluded now and were not.
    pub(super) claims: usize,
    /// Of these, claims that are exclusive now and were not.
    pub(super) were_shared: usize,
}

//! The claims on ranges of one unit: those that are held and those that wait.
//!
//! Owners take turns. A claim becomes eligible when the earlier claims of its own owner that
//! exclude it have ended. An eligible claim waits for the held claims that exclude it, and for
//! those that became eligible before it. Eligible claims of one owner do not exclude each other:
//! so an eligible claim waits for one claim of each other owner, or for several that run together.
//! No claim goes before one that is already eligible, so that none waits for ever, however wide it
//! is.
//!
//! A waiting claim counts what keeps it out. When a claim ends, one look at each waiting claim
//! finds those that are granted, and a second one counts those that become eligible, however many
//! are held or become eligible.

use super::blocks::{ClaimedBlocks, OverlapCounter};
use block::MemoryOwner;
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
    pub(super) owner: ClaimOwner,
    pub(super) blocks: ClaimedBlocks,
    pub(super) exclusive: bool,
    /// Reads wait for it as well.
    pub(super) secluded: bool,
    /// A piece of a third-party copy.
    pub(super) of_copy: bool,
}

/// The owner of a claim: connections of one address, and of these the ones that have proven to be
/// the same user (decision 095). Compared by identity. `None`: the server itself, for which the
/// limits are not.
pub(super) type ClaimOwner = Option<Arc<MemoryOwner>>;

/// A claim that waits.
#[derive(Debug)]
pub(super) struct WaitingClaim {
    pub(super) claim: Claim,
    pub(super) blockers: Blockers,
    /// The order in which claims become eligible. `None`: an earlier one of its owner excludes it.
    pub(super) turn: Option<u64>,
    /// Dropped when the claim is granted, which wakes the receiver.
    _grant: oneshot::Sender<()>,
}

/// What keeps a claim out, counted in pairs of ranges that overlap.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Blockers {
    /// Held claims, claims that became eligible before it, and earlier ones of its own owner.
    pub(super) all: usize,
    /// Of these the earlier ones of its own owner, held or waiting, until it is eligible.
    pub(super) own: usize,
}

/// A claim that has been removed.
#[derive(Debug)]
pub(super) struct RemovedClaim {
    pub(super) claim: Claim,
    /// As in [`WaitingClaim`]; [`HELD`] if it was held.
    turn: Option<u64>,
}

/// Counts the claims of a set that exclude another one, in pairs of ranges that overlap.
#[derive(Debug, Default)]
struct ConflictCounter {
    all: OverlapCounter,
    exclusive: OverlapCounter,
}

/// All claims on ranges of one unit.
#[derive(Debug, Default)]
pub(super) struct Claims {
    next_id: u64,
    last_turn: u64,
    /// Held or waiting; while there is none, no claim excludes another.
    pub(super) exclusive_claims: usize,
    pub(super) held: Vec<Claim>,
    /// In order of arrival, which is the order of their ids; not that of their turns.
    pub(super) waiting: VecDeque<WaitingClaim>,
    /// By slot: where a claim is in `held`, or [`NOT_HELD`].
    positions: Vec<u32>,
    free_slots: Vec<u32>,
}

/// In `positions`: the claim waits, or the slot is free.
const NOT_HELD: u32 = u32::MAX;
/// Of a claim that is not held and does not wait.
const NO_SLOT: u32 = u32::MAX;
/// The turn of a held claim: it is before all that wait.
const HELD: u64 = 0;

impl Claim {
    /// In how many pairs of ranges the claims exclude each other.
    pub(super) fn conflicts(&self, other: &Self) -> usize {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        if self.exclusive || other.exclusive { self.blocks.overlaps(&other.blocks) } else { 0 }
    }

    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.conflicts(other) > 0
    }

    pub(super) fn is_of(&self, owner: &ClaimOwner) -> bool {
        match (&self.owner, owner) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    fn is(&self, id: u64) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        self.id == id
    }
}

#[cfg(test)]
thread_local! {
    /// Calls of [`Claim::conflicts`], [`Claim::is`] and [`ConflictCounter::count`] in this thread.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl WaitingClaim {
    fn has_to_wait(&self, shared: bool) -> bool {
        self.blockers.all > 0 || (self.claim.exclusive && shared)
    }

    /// True if it is not eligible, and `other` is an earlier claim of its owner.
    fn is_behind_own(&self, other: &Claim) -> bool {
        self.turn.is_none() && other.id < self.claim.id && self.claim.is_of(&other.owner)
    }

    /// True if it is not eligible, and another owner's.
    fn is_ineligible_of_other(&self, owner: &ClaimOwner) -> bool {
        self.turn.is_none() && !self.claim.is_of(owner)
    }
}

impl RemovedClaim {
    /// True if `waiting` has counted it, where they exclude each other.
    fn is_counted_by(&self, waiting: &WaitingClaim) -> bool {
        match (self.turn, waiting.turn) {
            (Some(own), Some(other)) => own < other,
            (Some(_), None) => true,
            (None, _) => waiting.is_behind_own(&self.claim),
        }
    }
}

impl ConflictCounter {
    fn add(&mut self, claim: &Claim) {
        self.all.add(&claim.blocks);
        if claim.exclusive {
            self.exclusive.add(&claim.blocks);
        }
    }

    fn sort(&mut self) {
        self.all.sort();
        self.exclusive.sort();
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// As the sum of [`Claim::conflicts`] of all in the set.
    fn count(&self, claim: &Claim) -> usize {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        if claim.exclusive { &self.all } else { &self.exclusive }.count(&claim.blocks)
    }
}

impl Claims {
    /// A claim that is neither held nor waits yet.
    pub(super) fn new_claim(
        &mut self,
        owner: ClaimOwner,
        blocks: ClaimedBlocks,
        exclusive: bool,
    ) -> Claim {
        let id = self.next_id;
        self.next_id += 1;
        Claim { id, slot: NO_SLOT, owner, blocks, exclusive, secluded: false, of_copy: false }
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

    /// What keeps a new claim out, which `exclusive_claims` counts already.
    pub(super) fn blockers(&self, new: &Claim) -> Blockers {
        let mut blockers = Blockers::default();
        if self.exclusive_claims == 0 {
            return blockers;
        }
        let goes_before = |waiting: &&WaitingClaim| !waiting.is_ineligible_of_other(&new.owner);
        let waiting = self.waiting.iter().filter(goes_before).map(|waiting| &waiting.claim);
        for other in self.held.iter().chain(waiting) {
            let conflicts = other.conflicts(new);
            blockers.all += conflicts;
            if conflicts > 0 && other.is_of(&new.owner) {
                blockers.own += conflicts;
            }
        }
        blockers
    }

    /// True if a claim, held or waiting, excludes this one, whosever turn it is.
    pub(super) fn is_excluded(&self, new: &Claim) -> bool {
        self.exclusive_claims > 0
            && (self.held.iter().any(|held| held.excludes(new))
                || self.waiting.iter().any(|waiting| waiting.claim.excludes(new)))
    }

    /// Has a new claim that none of its own owner keeps out go before those of other owners that
    /// are not eligible yet. Returns its turn.
    pub(super) fn make_eligible(&mut self, claim: &Claim) -> u64 {
        for waiting in &mut self.waiting {
            if waiting.is_ineligible_of_other(&claim.owner) {
                waiting.blockers.all += claim.conflicts(&waiting.claim);
            }
        }
        self.last_turn += 1;
        self.last_turn
    }

    /// True if one more claim of this owner may wait.
    pub(super) fn may_wait(&self, owner: &Arc<MemoryOwner>) -> bool {
        let (mut of_owner, mut of_all) = (0, 0);
        for other in self.waiting.iter().filter_map(|waiting| waiting.claim.owner.as_ref()) {
            of_all += 1;
            of_owner += usize::from(Arc::ptr_eq(other, owner));
        }
        of_owner < OWNER_WAITING_MAX && of_all < WAITING_MAX
    }

    /// Has a claim wait for its blockers, or for those who share everything without a claim.
    /// `turn` as in [`WaitingClaim`]. Returns its slot, and what tells of the grant.
    pub(super) fn wait(
        &mut self,
        mut claim: Claim,
        blockers: Blockers,
        turn: Option<u64>,
    ) -> (u32, oneshot::Receiver<()>) {
        let slot = self.take_slot();
        claim.slot = slot;
        let (grant, granted) = oneshot::channel();
        self.waiting.push_back(WaitingClaim { claim, blockers, turn, _grant: grant });
        (slot, granted)
    }

    /// Holds a claim in spite of all others; those that wait already wait for it, too. Returns its
    /// slot.
    pub(super) fn hold_at_head(&mut self, claim: Claim) -> u32 {
        for waiting in &mut self.waiting {
            waiting.blockers.all += claim.conflicts(&waiting.claim);
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
                let conflicts = claim.conflicts(&waiting.claim);
                waiting.blockers.all += conflicts;
                if waiting.is_behind_own(claim) {
                    waiting.blockers.own += conflicts;
                }
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
            RemovedClaim { claim, turn: Some(HELD) }
        } else {
            let at = self.waiting.binary_search_by_key(&id, |waiting| waiting.claim.id).ok()?;
            let waiting = self.waiting.remove(at)?;
            RemovedClaim { claim: waiting.claim, turn: waiting.turn }
        };
        self.free_slot(slot);
        Some(removed)
    }

    /// Lets go of `removed`, and grants the claims that nothing keeps out any more. `shared`:
    /// somebody shares everything without a claim, which keeps all exclusive ones out.
    pub(super) fn grant(&mut self, removed: Option<&RemovedClaim>, shared: bool) {
        let (mut granted, mut first_granted) = (0, 0);
        let mut eligible = ConflictCounter::default();
        for (at, waiting) in self.waiting.iter_mut().enumerate() {
            if let Some(removed) = removed.filter(|removed| removed.is_counted_by(waiting)) {
                let conflicts = removed.claim.conflicts(&waiting.claim);
                waiting.blockers.all -= conflicts;
                if waiting.is_behind_own(&removed.claim) {
                    waiting.blockers.own -= conflicts;
                    if waiting.blockers.own == 0 {
                        self.last_turn += 1;
                        waiting.turn = Some(self.last_turn);
                        eligible.add(&waiting.claim);
                    }
                }
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
        if let Some(removed) = removed.filter(|_| !eligible.is_empty()) {
            self.count_eligible(eligible, &removed.claim.owner);
        }
    }

    /// Has the claims of others that are not eligible yet count those of `owner` that now are.
    fn count_eligible(&mut self, mut eligible: ConflictCounter, owner: &ClaimOwner) {
        eligible.sort();
        for waiting in &mut self.waiting {
            if waiting.is_ineligible_of_other(owner) {
                waiting.blockers.all += eligible.count(&waiting.claim);
            }
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

//! The claims on ranges of one unit, held and waiting.
//!
//! Owners take turns. A claim becomes eligible when the earlier claims of its own owner that
//! exclude it have ended. An eligible claim waits for the held claims that exclude it, and for
//! those that became eligible before it. Eligible claims of one owner do not exclude each other:
//! therefore an eligible claim waits for one claim of each other owner, or for several that run
//! together. No claim goes before one that is already eligible, so none waits for ever, however
//! wide it is.
//!
//! An eligible claim counts the claims that block it; one that is not eligible counts those of its
//! own owner only. A claim that begins or ends looks at those whose blocks overlap its own, found
//! by block: at held and eligible ones, and at those of its own owner. It does not look at
//! ineligible claims of other owners, nor at claims behind another one in a chain ([`OwnerQueue`]).
//! Therefore its cost does not grow with the number of claims elsewhere on the unit.

mod awaited;

use super::blocks::{ClaimedBlocks, OverlapCounter};
use super::claim_index::ClaimIndex;
use super::owner_queue::OwnerQueue;
use super::spare::{self, KEPT_MAX, is_sparse};
use crate::abort::AbortSignal;
use crate::awaited::AwaitedCommands;
use lunar_block::MemoryOwner;
use lunar_scsi::plan::LbaRange;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Number of claims of one owner that may wait at a unit. The end of a claim may cost time for each
/// claim of its own owner.
pub(super) const OWNER_WAITING_MAX: usize = 1024;
/// Number of claims of all owners together that may wait at a unit, apart from one of each owner.
/// Claims without an owner, which other limits bound, are not counted.
pub(super) const WAITING_MAX: usize = 8192;

/// Blocks that an owner holds or waits for.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) id: u64,
    /// Slot in [`Claims`], once the claim is held or waits.
    pub(super) slot: u32,
    pub(super) owner: ClaimOwner,
    pub(super) blocks: ClaimedBlocks,
    pub(super) exclusive: bool,
    /// True when reads wait for the claim as well.
    pub(super) blocks_readers: bool,
    /// True for a piece of a third-party copy.
    pub(super) of_copy: bool,
}

/// The owner of a claim: connections of one address, and of these the ones that have proven to be
/// the same user (decision 095). Compared by identity. `None`: the server itself, to which the
/// limits do not apply.
pub(super) type ClaimOwner = Option<Arc<MemoryOwner>>;

/// A claim in its slot.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    pub(super) claim: Claim,
    /// Index in `held`; `None` while the claim waits.
    pub(super) held_at: Option<u32>,
    /// Count of a waiting claim: [`Blockers::all`] if it is eligible, [`Blockers::own`] if not.
    pub(super) blockers: usize,
    /// The order in which claims become eligible; [`HELD`] if it never waited. `None` while an
    /// earlier claim of its owner excludes it.
    pub(super) turn: Option<u64>,
    /// True when other claims count it. False if it waits behind another one in a chain: its
    /// `blockers` is unused.
    pub(super) is_counted: bool,
    /// True when it is held although others exclude it.
    is_at_head: bool,
    /// Dropped after a waiting claim is granted, which wakes the receiver.
    grant: Option<oneshot::Sender<()>>,
    /// The command that made the claim.
    pub(super) command: Option<AbortSignal>,
    /// True when its command is awaited for it: it is held, and an eligible claim of another owner
    /// waits for it, or readers may. True as well if a claim of its own owner that
    /// [passes it on](Claims::mark_own_blockers_awaited) waits for it, even while it waits itself.
    pub(super) is_awaited: bool,
    /// True when the earlier claims of its owner that keep it waiting are awaited.
    pub(super) has_awaited_blockers: bool,
}

/// Claims that block a claim, counted in pairs of ranges that overlap. Of claims in a chain only
/// the front is counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Blockers {
    /// Held claims, claims that became eligible before it, and earlier ones of its own owner.
    pub(super) all: usize,
    /// Number of those blockers that are earlier claims of its own owner, held or waiting.
    pub(super) own: usize,
}

/// A claim that has been removed.
#[derive(Debug)]
pub(super) struct RemovedClaim {
    pub(super) claim: Claim,
    /// Turn of the claim in [`ClaimEntry`]; [`HELD`] if it was held.
    turn: Option<u64>,
    blockers: usize,
    is_counted: bool,
}

/// Claims that have been granted, and those among all held ones that are awaited now. Dropping them
/// wakes their waiters and connections, which may need the lock of the claims, so that lock must
/// not be held then.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Grants {
    senders: Vec<oneshot::Sender<()>>,
    awaited: AwaitedCommands,
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
    /// Number of exclusive claims, held or waiting; while it is 0, no claim excludes another.
    pub(super) exclusive_claims: usize,
    /// Number of waiting claims, and of those among them that have an owner.
    pub(super) waiting: usize,
    pub(super) waiting_of_owners: usize,
    /// Slots of the held claims, in no order.
    pub(super) held: Vec<u32>,
    /// Entries by slot.
    pub(super) entries: Vec<ClaimEntry>,
    /// Free slots, including some beyond the end of `entries`. The lowest is used first, so that
    /// the last ones become free for good when there are fewer claims.
    free_slots: BinaryHeap<Reverse<u32>>,
    held_index: ClaimIndex,
    /// Held claims that did not wait for others.
    head_index: ClaimIndex,
    /// Claims that wait and are eligible.
    eligible_index: ClaimIndex,
    /// Exclusive claims of all owners that are not eligible, without those behind others in a
    /// chain.
    ineligible_index: ClaimIndex,
    /// Owners with waiting claims, by [`owner_key`].
    owners: HashMap<usize, OwnerQueue>,
    /// Eligible claims that are blocked only by shares of everything without a claim.
    behind_shares: BTreeSet<u32>,
    /// Commands that have become awaited, and whose connections are not signalled yet.
    awaited: AwaitedCommands,
}

/// Slot of a claim that is neither held nor waits.
const NO_SLOT: u32 = u32::MAX;
/// Number of claims becoming eligible at once up to which each is compared with the others one by
/// one.
const COUNTED_ALONE_MAX: usize = if cfg!(test) { 1 } else { 8 };
/// Id of the claim in a free slot.
pub(super) const NO_CLAIM: u64 = u64::MAX;
/// Turn of a held claim: before all that wait.
const HELD: u64 = 0;

impl Claim {
    /// Number of pairs of ranges in which the claims exclude each other.
    pub(super) fn conflicts(&self, other: &Self) -> usize {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        if self.exclusive || other.exclusive { self.blocks.overlaps(&other.blocks) } else { 0 }
    }

    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.conflicts(other) > 0
    }

    pub(super) fn is_of(&self, owner: &ClaimOwner) -> bool {
        owner_key(&self.owner) == owner_key(owner)
    }
}

fn sum(found: Vec<(u32, usize)>) -> usize {
    found.into_iter().map(|(_, conflicts)| conflicts).sum()
}

/// Identifies an owner; 0 for the server itself. Valid while a claim of the owner lives.
fn owner_key(owner: &ClaimOwner) -> usize {
    owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner) as usize)
}

#[cfg(test)]
thread_local! {
    /// Number of looks at a claim in an index, and of calls of [`Claim::conflicts`] and
    /// [`ConflictCounter::count`], in this thread.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl ClaimEntry {
    fn new(claim: Claim) -> Self {
        let turn = Some(HELD);
        let (is_counted, is_at_head) = (true, false);
        Self {
            claim,
            held_at: None,
            blockers: 0,
            turn,
            is_counted,
            is_at_head,
            grant: None,
            command: None,
            is_awaited: false,
            has_awaited_blockers: false,
        }
    }

    fn is_free(&self) -> bool {
        self.claim.id == NO_CLAIM
    }

    /// Entry of a free slot.
    fn free() -> Self {
        let blocks = ClaimedBlocks::Range(LbaRange { lba: 0, count: 0 });
        Self::new(Claim {
            id: NO_CLAIM,
            slot: NO_SLOT,
            owner: None,
            blocks,
            exclusive: false,
            blocks_readers: false,
            of_copy: false,
        })
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

    /// Sum of [`Claim::conflicts`] over the set.
    fn count(&self, claim: &Claim) -> usize {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        if claim.exclusive { &self.all } else { &self.exclusive }.count(&claim.blocks)
    }
}

impl Claims {
    /// Creates a claim that is neither held nor waits yet.
    pub(super) fn new_claim(
        &mut self,
        owner: ClaimOwner,
        blocks: ClaimedBlocks,
        exclusive: bool,
    ) -> Claim {
        let id = self.next_id;
        self.next_id += 1;
        Claim { id, slot: NO_SLOT, owner, blocks, exclusive, blocks_readers: false, of_copy: false }
    }

    /// Blockers of a new claim, which `exclusive_claims` counts already.
    pub(super) fn blockers(&self, new: &Claim) -> Blockers {
        if self.exclusive_claims == 0 {
            return Blockers::default();
        }
        let queue = self.owners.get(&owner_key(&new.owner));
        if queue.is_some_and(|queue| queue.front(new).is_some()) {
            return Blockers { all: 1, own: 1 };
        }
        let mut blockers = Blockers::default();
        for index in [&self.held_index, &self.eligible_index] {
            for (slot, conflicts) in self.excluded_by(index, new) {
                let is_own = self.claim(slot).is_of(&new.owner);
                blockers.all += conflicts;
                blockers.own += if is_own { conflicts } else { 0 };
            }
        }
        let own = queue.map_or(0, |queue| sum(self.excluded_by(&queue.fronts, new)));
        blockers.all += own;
        blockers.own += own;
        blockers
    }

    /// The claims of an index that exclude this one, each with its [`Claim::conflicts`].
    fn excluded_by(&self, index: &ClaimIndex, claim: &Claim) -> Vec<(u32, usize)> {
        let is_list = |claim: &Claim| claim.blocks.as_range().is_none();
        let mut found = Vec::new();
        let mut has_lists = is_list(claim);
        index.any(&claim.blocks, claim.exclusive, |slot| {
            has_lists |= is_list(self.claim(slot));
            found.push((slot, 1));
            false
        });
        if has_lists {
            found.sort_unstable();
            found.dedup();
            for (slot, conflicts) in &mut found {
                *conflicts = self.claim(*slot).conflicts(claim);
            }
            found.retain(|(_, conflicts)| *conflicts > 0);
        }
        found
    }

    /// True if an exclusive claim, held or waiting, excludes this shared one, in whatever order
    /// they are granted.
    pub(super) fn excludes_shared(&self, new: &Claim) -> bool {
        let indexes = [&self.held_index, &self.eligible_index, &self.ineligible_index];
        let excludes = |slot| self.claim(slot).excludes(new);
        self.exclusive_claims > 0
            && indexes.iter().any(|index| index.any(&new.blocks, false, excludes))
    }

    /// True if `hides` holds for an exclusive held claim that overlaps these blocks.
    pub(super) fn any_exclusive_held(
        &self,
        blocks: &ClaimedBlocks,
        hides: impl Fn(&Claim) -> bool,
    ) -> bool {
        let found = |slot| {
            let held = self.claim(slot);
            hides(held) && held.blocks.overlap(blocks)
        };
        self.held_index.any(blocks, false, found)
    }

    /// True if one more claim of this owner may wait. Its first one always may, however many claims
    /// of other owners wait: there are fewer owners than connections.
    pub(super) fn may_wait(&self, owner: &Arc<MemoryOwner>) -> bool {
        let of_owner = self.waiting_of(&Some(Arc::clone(owner)));
        of_owner == 0 || (of_owner < OWNER_WAITING_MAX && self.waiting_of_owners < WAITING_MAX)
    }

    /// True when no index, owner or slot has a claim.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        let indexes =
            [&self.held_index, &self.head_index, &self.eligible_index, &self.ineligible_index];
        indexes.iter().all(|index| index.is_empty())
            && self.owners.is_empty()
            && self.behind_shares.is_empty()
            && self.entries.iter().all(ClaimEntry::is_free)
    }

    /// Memory of the claims, including spare capacity.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let indexes =
            [&self.held_index, &self.head_index, &self.eligible_index, &self.ineligible_index];
        size_of::<Self>()
            + self.held.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<ClaimEntry>()
            + self.free_slots.capacity() * size_of::<u32>()
            + indexes.map(ClaimIndex::memory_bytes).iter().sum::<usize>()
            + self.owners.capacity() * size_of::<(usize, OwnerQueue)>()
            + self.owners.values().map(|queue| queue.fronts.memory_bytes()).sum::<usize>()
    }

    /// True when the memory is that of a few claims.
    pub(super) fn are_small(&self) -> bool {
        self.entries.capacity() <= KEPT_MAX
    }

    /// True when no claim is held or waits.
    pub(super) fn are_none(&self) -> bool {
        let are_none = self.held.is_empty() && self.waiting == 0;
        #[cfg(test)]
        assert!(!are_none || (self.is_unused() && self.exclusive_claims == 0));
        are_none
    }

    /// Number of waiting claims of this owner.
    pub(super) fn waiting_of(&self, owner: &ClaimOwner) -> usize {
        self.owners.get(&owner_key(owner)).map_or(0, |queue| queue.waiting)
    }

    /// Holds a claim that has no blockers; returns its slot.
    pub(super) fn hold(&mut self, claim: Claim) -> u32 {
        let slot = self.take_slot();
        let claim = Claim { slot, ..claim };
        self.held_index.insert(&claim.blocks, claim.exclusive, slot);
        let held_at = Some(self.held.len() as u32);
        self.held.push(slot);
        *self.entry_mut(slot) = ClaimEntry { held_at, ..ClaimEntry::new(claim) };
        slot
    }

    /// Holds a claim in spite of all others; claims that wait already now also wait for it. Returns
    /// its slot.
    pub(super) fn hold_at_head(&mut self, claim: Claim) -> u32 {
        for (slot, conflicts) in self.excluded_by(&self.eligible_index, &claim) {
            self.entry_mut(slot).blockers += conflicts;
            self.behind_shares.remove(&slot);
        }
        let blocks = claim.blocks.clone();
        let slot = self.hold(claim);
        self.head_index.insert(&blocks, true, slot);
        self.entry_mut(slot).is_at_head = true;
        slot
    }

    /// Makes a claim wait for its blockers, or for shares of everything without a claim. Returns
    /// its slot, and the receiver of its grant.
    pub(super) fn wait(
        &mut self,
        claim: Claim,
        blockers: Blockers,
    ) -> (u32, oneshot::Receiver<()>) {
        let slot = self.take_slot();
        let claim = Claim { slot, ..claim };
        self.waiting += 1;
        self.waiting_of_owners += usize::from(claim.owner.is_some());
        let queue = self.owners.entry(owner_key(&claim.owner)).or_default();
        queue.waiting += 1;
        let (mut turn, mut is_counted) = (None, true);
        if blockers.own == 0 {
            self.last_turn += 1;
            turn = Some(self.last_turn);
            self.eligible_index.insert(&claim.blocks, claim.exclusive, slot);
            if blockers.all == 0 {
                self.behind_shares.insert(slot);
            } else {
                self.mark_holders_awaited(&claim);
            }
        } else {
            is_counted = queue.front(&claim).is_none();
            queue.chain(&claim);
            if is_counted {
                self.index_ineligible(&claim);
            }
        }
        let (grant, granted) = oneshot::channel();
        let blockers = if turn.is_some() { blockers.all } else { blockers.own };
        let grant = Some(grant);
        *self.entry_mut(slot) =
            ClaimEntry { blockers, turn, is_counted, grant, ..ClaimEntry::new(claim) };
        (slot, granted)
    }

    /// Makes a held claim block readers, and thereby exclusive.
    pub(super) fn block_readers(&mut self, slot: u32) -> BlockedReaders {
        let claim = &mut self.entry_mut(slot).claim;
        if claim.blocks_readers {
            return BlockedReaders::default();
        }
        claim.blocks_readers = true;
        let is_exclusive = claim.exclusive;
        self.set_awaited(slot);
        let claim = &mut self.entry_mut(slot).claim;
        if is_exclusive {
            return BlockedReaders { claims: 1, were_shared: 0 };
        }
        claim.exclusive = true;
        let claim = claim.clone();
        self.held_index.remove(&claim.blocks, false, slot);
        self.held_index.insert(&claim.blocks, true, slot);
        // A waiting exclusive claim has counted it already.
        let mut others = self.excluded_by(&self.eligible_index, &claim);
        others.extend(self.own_behind(&claim));
        others.retain(|(other, _)| !self.claim(*other).exclusive);
        for (other, conflicts) in others {
            self.entry_mut(other).blockers += conflicts;
        }
        BlockedReaders { claims: 1, were_shared: 1 }
    }

    /// Removes a claim that is held or waits. [`grant`](Self::grant) has to follow.
    pub(super) fn remove(&mut self, id: u64, slot: u32) -> Option<RemovedClaim> {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        let entry = self.entries.get_mut(slot as usize).filter(|entry| entry.claim.id == id)?;
        let entry = std::mem::replace(entry, ClaimEntry::free());
        self.free_slots.push(Reverse(slot));
        let ClaimEntry { claim, held_at, blockers, is_counted, .. } = entry;
        if let Some(command) = entry.command.filter(|_| entry.is_awaited) {
            command.uncount_awaited();
        }
        let turn = if held_at.is_some() { Some(HELD) } else { entry.turn };
        if let Some(at) = held_at {
            self.held_index.remove(&claim.blocks, claim.exclusive, slot);
            if entry.is_at_head {
                self.head_index.remove(&claim.blocks, true, slot);
            }
            self.held.swap_remove(at as usize);
            if let Some(moved) = self.held.get(at as usize).copied() {
                self.entry_mut(moved).held_at = Some(at);
            }
        } else {
            if turn.is_some() {
                self.eligible_index.remove(&claim.blocks, claim.exclusive, slot);
                self.behind_shares.remove(&slot);
            } else {
                self.leave_ineligible(&claim, is_counted);
            }
            self.count_out(&claim.owner);
        }
        if self.entries.len() > KEPT_MAX || self.held.capacity() > KEPT_MAX {
            self.free_spare();
        }
        Some(RemovedClaim { claim, turn, blockers, is_counted })
    }

    /// Releases `removed`, and grants the claims that have no blockers any more. `shared`: there
    /// are shares of everything without a claim, which block all exclusive claims.
    pub(super) fn grant(&mut self, removed: Option<&RemovedClaim>, shared: bool) -> Grants {
        let mut ready = Vec::new();
        if let Some(removed) = removed.filter(|removed| removed.is_counted) {
            self.unblock_eligible(removed, &mut ready);
            self.unblock_own(removed, &mut ready);
        }
        if !shared {
            ready.extend(std::mem::take(&mut self.behind_shares));
        }
        let mut grants = Grants::default();
        for slot in ready {
            // Claims behind it have counted it and continue doing so. A waiter that is gone removes
            // its claim itself when its guard is dropped.
            if shared && self.claim(slot).exclusive {
                self.behind_shares.insert(slot);
            } else {
                grants.senders.extend(self.hold_waiting(slot));
            }
        }
        grants.awaited = self.take_awaited();
        grants
    }

    /// Uncounts `removed` at eligible claims; those without further blockers are added to `ready`.
    fn unblock_eligible(&mut self, removed: &RemovedClaim, ready: &mut Vec<u32>) {
        let Some(turn) = removed.turn else { return };
        for (slot, conflicts) in self.excluded_by(&self.eligible_index, &removed.claim) {
            let waiting = self.entry_mut(slot);
            if waiting.turn.is_some_and(|other| turn < other) {
                waiting.blockers -= conflicts;
                if waiting.blockers == 0 {
                    ready.push(slot);
                }
            }
        }
    }

    /// Uncounts `removed` at claims of the same owner, and makes those eligible that no earlier one
    /// of their owner excludes.
    fn unblock_own(&mut self, removed: &RemovedClaim, ready: &mut Vec<u32>) {
        let behind = self.own_behind(&removed.claim);
        for (slot, conflicts) in &behind {
            self.entry_mut(*slot).blockers -= conflicts;
        }
        let mut freed: Vec<u32> = behind.into_iter().map(|(slot, _)| slot).collect();
        if removed.turn.is_none() {
            freed.extend(self.promote(&removed.claim, removed.blockers));
        }
        freed.retain(|slot| self.entry_mut(*slot).blockers == 0);
        freed.sort_unstable_by_key(|slot| self.claim(*slot).id);
        // They do not exclude each other, so none has to count those that become eligible before
        // it.
        let counter = (freed.len() > COUNTED_ALONE_MAX).then(|| self.count_around(&freed));
        for slot in freed.iter().copied() {
            let blockers = self.blockers_with_turn(counter.as_ref(), slot);
            self.make_eligible(slot, blockers);
            if blockers == 0 {
                ready.push(slot);
            } else if counter.is_none() {
                self.mark_holders_awaited(&self.claim(slot).clone());
            }
        }
        if counter.is_some() {
            self.mark_holders_awaited_around(&freed);
        }
    }

    /// Later claims of the same owner that are not eligible and count this one.
    fn own_behind(&self, claim: &Claim) -> Vec<(u32, usize)> {
        let Some(queue) = self.owners.get(&owner_key(&claim.owner)) else { return Vec::new() };
        let mut behind = self.excluded_by(&queue.fronts, claim);
        behind.retain(|(slot, _)| self.claim(*slot).id > claim.id);
        behind
    }

    /// Number of blockers of a claim among the held and eligible claims.
    fn blockers_with_turn(&self, counter: Option<&ConflictCounter>, slot: u32) -> usize {
        let claim = self.claim(slot);
        if let Some(counter) = counter {
            return counter.count(claim);
        }
        let indexes = [&self.held_index, &self.eligible_index];
        indexes.into_iter().map(|index| sum(self.excluded_by(index, claim))).sum()
    }

    /// Counts the held and eligible claims from the first block of these claims to the last one:
    /// many claims may wait for the same ones, which are then visited once and not for each.
    fn count_around(&self, claims: &[u32]) -> ConflictCounter {
        let mut counter = ConflictCounter::default();
        let all = self.blocks_around(claims);
        let mut slots = Vec::new();
        for index in [&self.held_index, &self.eligible_index] {
            index.any(&all, true, |slot| {
                slots.push(slot);
                false
            });
        }
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().for_each(|slot| counter.add(self.claim(slot)));
        counter.sort();
        counter
    }

    /// The blocks from the first one of these claims to the last one.
    fn blocks_around(&self, claims: &[u32]) -> ClaimedBlocks {
        let spans = || claims.iter().flat_map(|slot| self.claim(*slot).blocks.spans());
        let first = spans().map(|span| span.start).min().unwrap_or(0);
        let last = spans().map(|span| span.end).max().unwrap_or(0);
        LbaRange { lba: first, count: last - first }.into()
    }

    /// Makes a claim eligible that no earlier one of its owner excludes.
    fn make_eligible(&mut self, slot: u32, blockers: usize) {
        let claim = self.claim(slot).clone();
        self.leave_ineligible(&claim, true);
        self.last_turn += 1;
        let turn = Some(self.last_turn);
        let waiting = self.entry_mut(slot);
        (waiting.blockers, waiting.turn) = (blockers, turn);
        self.eligible_index.insert(&claim.blocks, claim.exclusive, slot);
        self.promote(&claim, 1);
    }

    /// Makes the next claim in the chain of one that has left it counted. Returns its slot.
    ///
    /// `own`: number of earlier claims of its owner that block it, without those that came between.
    fn promote(&mut self, left: &Claim, mut own: usize) -> Option<u32> {
        let queue = self.owners.get(&owner_key(&left.owner))?;
        let slot = queue.front(left)?;
        let claim = self.claim(slot).clone();
        // Claims that came between wait for the one that has left, except at the head of the queue.
        for index in [&queue.fronts, &self.head_index] {
            for (other, conflicts) in self.excluded_by(index, &claim) {
                let other = self.claim(other);
                let is_between = left.id < other.id && other.id < claim.id;
                own += if is_between && other.is_of(&claim.owner) { conflicts } else { 0 };
            }
        }
        let mut is_awaited = false;
        for (behind, conflicts) in self.own_behind(&claim) {
            let behind = self.entry_mut(behind);
            behind.blockers += conflicts;
            is_awaited |= behind.has_awaited_blockers;
        }
        let waiting = self.entry_mut(slot);
        (waiting.blockers, waiting.is_counted) = (own, true);
        self.index_ineligible(&claim);
        if is_awaited {
            self.set_awaited(slot);
        }
        if is_awaited || self.entry_mut(slot).has_awaited_blockers {
            self.mark_own_blockers_awaited(slot);
        }
        Some(slot)
    }

    /// Adds a claim that is not eligible to the indexes.
    fn index_ineligible(&mut self, claim: &Claim) {
        if let Some(queue) = self.owners.get_mut(&owner_key(&claim.owner)) {
            queue.fronts.insert(&claim.blocks, claim.exclusive, claim.slot);
        }
        if claim.exclusive {
            self.ineligible_index.insert(&claim.blocks, true, claim.slot);
        }
    }

    /// Removes a claim from those that are not eligible.
    fn leave_ineligible(&mut self, claim: &Claim, is_counted: bool) {
        let Some(queue) = self.owners.get_mut(&owner_key(&claim.owner)) else { return };
        queue.unchain(claim);
        if is_counted {
            queue.fronts.remove(&claim.blocks, claim.exclusive, claim.slot);
            if claim.exclusive {
                self.ineligible_index.remove(&claim.blocks, true, claim.slot);
            }
        }
    }

    /// Holds a claim that waited; returns the sender that wakes its waiter.
    fn hold_waiting(&mut self, slot: u32) -> Option<oneshot::Sender<()>> {
        let held_at = Some(self.held.len() as u32);
        self.held.push(slot);
        let entry = self.entry_mut(slot);
        entry.held_at = held_at;
        let grant = entry.grant.take();
        let claim = entry.claim.clone();
        self.eligible_index.remove(&claim.blocks, claim.exclusive, slot);
        self.held_index.insert(&claim.blocks, claim.exclusive, slot);
        self.count_out(&claim.owner);
        self.mark_awaited_if_waited_for(slot);
        grant
    }

    /// Counts one waiting claim of this owner less.
    fn count_out(&mut self, owner: &ClaimOwner) {
        self.waiting -= 1;
        self.waiting_of_owners -= usize::from(owner.is_some());
        let key = owner_key(owner);
        if let Some(queue) = self.owners.get_mut(&key) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                self.owners.remove(&key);
                if is_sparse(self.owners.len(), self.owners.capacity()) {
                    self.owners.shrink_to(2 * self.owners.len());
                }
            }
        }
    }

    /// The claim in a slot that is not free.
    pub(super) fn claim(&self, slot: u32) -> &Claim {
        &self.entries[slot as usize].claim
    }

    fn entry_mut(&mut self, slot: u32) -> &mut ClaimEntry {
        &mut self.entries[slot as usize]
    }

    /// The held claim of this id in a slot.
    pub(super) fn held_mut(&mut self, id: u64, slot: u32) -> Option<&mut Claim> {
        let entry = self.entries.get_mut(slot as usize)?;
        (entry.claim.id == id && entry.held_at.is_some()).then_some(&mut entry.claim)
    }

    fn take_slot(&mut self) -> u32 {
        if let Some(Reverse(slot)) = self.free_slots.pop()
            && (slot as usize) < self.entries.len()
        {
            return slot;
        }
        self.free_slots.clear(); // the rest is not in `entries` either
        self.entries.push(ClaimEntry::free());
        self.entries.len() as u32 - 1
    }

    /// Frees memory that many claims needed and few need now.
    #[cold]
    fn free_spare(&mut self) {
        spare::free(&mut self.held);
        while self.entries.len() > KEPT_MAX && self.entries.last().is_some_and(ClaimEntry::is_free)
        {
            self.entries.pop();
        }
        spare::free(&mut self.entries);
        let slots = self.entries.len();
        if is_sparse(slots, self.free_slots.len()) {
            self.free_slots.retain(|Reverse(slot)| (*slot as usize) < slots);
            self.free_slots.shrink_to(2 * slots);
        }
    }
}

/// Changes made by [`Claims::block_readers`].
#[derive(Debug, Default)]
pub(super) struct BlockedReaders {
    /// Number of claims that block readers now and did not before.
    pub(super) claims: usize,
    /// Number of those that are exclusive now and were not before.
    pub(super) were_shared: usize,
}

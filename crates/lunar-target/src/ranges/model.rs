//! Range locks against a model that checks every claim anew at every step.

use super::blocks::OverlapCounter;
use super::claims::{ClaimEntry, NO_CLAIM};
use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

/// An operation on the locks.
#[derive(Clone, Debug)]
enum Step {
    /// Queues a claim. `owner` 0 is the server itself.
    Queue {
        owner: usize,
        ranges: Vec<LbaRange>,
        exclusive: bool,
    },
    AtHead(LbaRange),
    TryLock(LbaRange),
    Share,
    /// Releases a held claim, or abandons a waiting one.
    Drop(usize),
    DropHeld(usize),
    DropShare(usize),
    Block(usize),
}

const OWNERS: usize = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // The same range often, so that there are chains.
    let range = || {
        let (lba, count) =
            (prop_oneof![1 => Just(3), 2 => 0..12u64], prop_oneof![Just(1), 0..5u64]);
        (lba, count).prop_map(|(lba, count)| LbaRange { lba, count })
    };
    let ranges = prop_oneof![
        8 => prop::collection::vec(range(), 1..4),
        1 => prop::collection::vec((0..80u64, 0..3u64), 1..24).prop_map(|ranges| {
            ranges.into_iter().map(|(lba, count)| LbaRange { lba, count }).collect()
        }),
    ];
    let step = prop_oneof![
        8 => (0..OWNERS, ranges, any::<bool>())
            .prop_map(|(owner, ranges, exclusive)| Step::Queue { owner, ranges, exclusive }),
        1 => range().prop_map(Step::AtHead),
        1 => range().prop_map(Step::TryLock),
        2 => Just(Step::Share),
        2 => any::<usize>().prop_map(Step::Drop),
        5 => any::<usize>().prop_map(Step::DropHeld),
        2 => any::<usize>().prop_map(Step::DropShare),
        1 => any::<usize>().prop_map(Step::Block),
    ];
    prop::collection::vec(step, 0..80)
}

/// The expected claims.
#[derive(Default)]
struct Model {
    held: Vec<Claim>,
    /// In order of arrival.
    waiting: Vec<ModelWaiting>,
    last_turn: u64,
    shares: usize,
    /// Claims that may be held alongside others that exclude them.
    forced: BTreeSet<u64>,
}

#[derive(Clone)]
struct ModelWaiting {
    claim: Claim,
    /// Turn of an eligible claim; `None` while an earlier claim of its owner excludes it.
    turn: Option<u64>,
}

fn is_behind_own(claim: &Claim, other: &Claim) -> bool {
    other.is_of(&claim.owner) && other.id < claim.id && other.excludes(claim)
}

fn first_held(locks: &RangeLocks) -> Option<u64> {
    let claims = locks.claims();
    claims.held.first().map(|slot| claims.claim(*slot).id)
}

impl Model {
    /// Makes every claim eligible that no earlier one of its owner excludes, and grants every claim
    /// that is excluded neither by a held one nor by one that was eligible before it.
    fn grant(&mut self) {
        for at in 0..self.waiting.len() {
            let claim = &self.waiting[at].claim;
            let waiting = self.waiting.iter().map(|waiting| &waiting.claim);
            let is_behind =
                self.held.iter().chain(waiting).any(|other| is_behind_own(claim, other));
            if self.waiting[at].turn.is_none() && !is_behind {
                self.last_turn += 1;
                self.waiting[at].turn = Some(self.last_turn);
            }
        }
        let mut eligible: Vec<_> = self.waiting.extract_if(.., |one| one.turn.is_some()).collect();
        eligible.sort_by_key(|waiting| waiting.turn);
        let mut still_waiting: Vec<ModelWaiting> = Vec::new();
        for waiting in eligible {
            let claim = &waiting.claim;
            let earlier = still_waiting.iter().map(|before| &before.claim);
            let mut before = self.held.iter().chain(earlier);
            if before.any(|other| other.excludes(claim)) || (claim.exclusive && self.shares > 0) {
                still_waiting.push(waiting);
            } else {
                self.held.push(waiting.claim);
            }
        }
        self.waiting.extend(still_waiting);
        self.waiting.sort_by_key(|waiting| waiting.claim.id);
    }

    /// Number of blockers of an eligible claim, in pairs of ranges that overlap.
    fn blockers(&self, turn: u64, claim: &Claim) -> usize {
        let is_earlier = |other: &&ModelWaiting| other.turn.is_some_and(|other| other < turn);
        let earlier = self.waiting.iter().filter(is_earlier).map(|waiting| &waiting.claim);
        self.held.iter().chain(earlier).map(|other| other.conflicts(claim)).sum()
    }

    fn all(&self) -> impl Iterator<Item = &Claim> {
        self.held.iter().chain(self.waiting.iter().map(|waiting| &waiting.claim))
    }

    fn has_exclusive(&self) -> bool {
        self.all().any(|claim| claim.exclusive)
    }

    fn remove(&mut self, id: u64) {
        self.held.retain(|claim| claim.id != id);
        self.waiting.retain(|waiting| waiting.claim.id != id);
    }
}

/// The locks, the queue positions and shares taken of them, and their model.
#[derive(Default)]
struct Rig {
    locks: Arc<RangeLocks>,
    owners: [Arc<MemoryOwner>; OWNERS],
    queued: Vec<RangeQueued>,
    shares: Vec<RangeShare<Arc<RangeLocks>>>,
    model: Model,
}

impl Rig {
    fn claim(&self, queued: &RangeQueued, blocks: ClaimedBlocks, exclusive: bool) -> Claim {
        Claim {
            id: queued.guard.id,
            slot: queued.guard.slot,
            owner: None,
            blocks,
            exclusive,
            blocks_readers: false,
            of_copy: false,
        }
    }

    /// True for a claim whose command others wait for.
    fn marks_own_blockers(&self, owner: &ClaimOwner, exclusive: bool) -> bool {
        !exclusive && owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, &self.owners[1]))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Queue { owner, ref ranges, exclusive } => {
                let blocks = ClaimedBlocks::of(ranges);
                let owner = (owner > 0).then(|| Arc::clone(&self.owners[owner]));
                let queued = match &owner {
                    Some(owner) => {
                        let command = AbortSignal::default();
                        let blocks = blocks.clone();
                        self.locks
                            .queue_for_command(owner, Some(&command), blocks, exclusive)
                            .unwrap()
                    }
                    None => self.locks.queue(blocks.clone(), exclusive),
                };
                if self.marks_own_blockers(&owner, exclusive) {
                    queued.mark_own_blockers_awaited();
                }
                let claim = Claim { owner, ..self.claim(&queued, blocks, exclusive) };
                self.model.waiting.push(ModelWaiting { claim, turn: None });
                self.queued.push(queued);
            }
            Step::AtHead(range) => {
                let queued = self.locks.at_head(range);
                self.model.held.push(self.claim(&queued, range.into(), true));
                self.model.forced.insert(queued.guard.id);
                self.queued.push(queued);
            }
            Step::TryLock(range) => {
                if let Some(guard) = self.locks.try_lock_shared(range) {
                    let queued = RangeQueued { guard, wait: None };
                    let claim = self.claim(&queued, range.into(), false);
                    assert!(!self.model.all().any(|other| other.excludes(&claim)));
                    self.model.held.push(claim);
                    self.queued.push(queued);
                }
            }
            Step::Share => {
                let share = RangeLocks::try_share(Arc::clone(&self.locks));
                assert_eq!(share.is_none(), self.model.has_exclusive());
                self.model.shares += usize::from(share.is_some());
                self.shares.extend(share);
            }
            Step::Drop(which) if !self.queued.is_empty() => {
                let queued = self.queued.swap_remove(which % self.queued.len());
                self.model.remove(queued.guard.id);
            }
            Step::DropHeld(which) if !self.model.held.is_empty() => {
                let id = self.model.held[which % self.model.held.len()].id;
                self.model.remove(id);
                self.queued.retain(|queued| queued.guard.id != id);
            }
            Step::DropShare(which) if !self.shares.is_empty() => {
                self.model.shares -= 1;
                drop(self.shares.swap_remove(which % self.shares.len()));
            }
            Step::Block(which) if !self.model.held.is_empty() => {
                let at = which % self.model.held.len();
                let claim = &mut self.model.held[at];
                (claim.exclusive, claim.blocks_readers) = (true, true);
                self.model.forced.insert(claim.id);
                let queued = self.queued.iter().find(|queued| queued.guard.id == claim.id);
                queued.unwrap().guard.block_readers();
            }
            _ => {}
        }
        self.model.grant();
    }

    fn check(&self) {
        let mut claims = self.locks.claims();
        let ids = |claims: &[Claim]| claims.iter().map(|claim| claim.id).collect::<BTreeSet<_>>();
        let held: Vec<Claim> = claims.held.iter().map(|slot| claims.claim(*slot).clone()).collect();
        let is_waiting =
            |entry: &&ClaimEntry| entry.claim.id != NO_CLAIM && entry.held_at.is_none();
        let mut waiting: Vec<_> = claims.entries.iter().filter(is_waiting).collect();
        waiting.sort_by_key(|entry| entry.claim.id);
        assert_eq!(ids(&held), ids(&self.model.held));
        assert_eq!(waiting.len(), self.model.waiting.len());
        assert_eq!(waiting.len(), claims.waiting);
        for (entry, model) in waiting.iter().zip(&self.model.waiting) {
            assert_eq!(entry.claim.id, model.claim.id);
            self.check_waiting(entry, model, &claims);
        }
        check_awaited(&claims, &waiting);
        self.check_own_awaited(&claims, &waiting);
        let waiting: Vec<_> = waiting.into_iter().map(|entry| entry.claim.clone()).collect();
        self.check_limits(&claims);
        for (at, one) in held.iter().enumerate() {
            for other in held.iter().take(at).filter(|other| other.excludes(one)) {
                let forced = |claim: &Claim| self.model.forced.contains(&claim.id);
                assert!(forced(one) || forced(other), "both are held: {one:?} {other:?}");
            }
        }
        let all = held.iter().chain(&waiting);
        let exclusive = all.filter(|claim| claim.exclusive).count();
        assert_eq!(claims.exclusive_claims, exclusive);
        let bit = if exclusive > 0 { EXCLUSIVE } else { 0 };
        assert_eq!(self.locks.shares.load(SeqCst), (self.shares.len() * SHARE) | bit);
        for RangeQueued { guard, .. } in &self.queued {
            let is_held = held.iter().any(|held| held.id == guard.id);
            assert_eq!(claims.held_mut(guard.id, guard.slot).is_some(), is_held);
        }
        let blocks_readers = held.iter().filter(|claim| claim.blocks_readers).count();
        assert_eq!(self.locks.blocks_readers.load(SeqCst), blocks_readers);
    }

    /// Checks the counts of a claim that waits.
    fn check_waiting(&self, entry: &ClaimEntry, model: &ModelWaiting, claims: &Claims) {
        assert_eq!(entry.turn.is_some(), model.turn.is_some(), "{entry:?}");
        if let Some(turn) = model.turn {
            let by_shares = entry.claim.exclusive && !self.shares.is_empty();
            assert_eq!(entry.blockers, self.model.blockers(turn, &model.claim), "{entry:?}");
            assert!(entry.blockers > 0 || by_shares, "nothing keeps it out: {entry:?}");
            return;
        }
        let live = claims.entries.iter().filter(|other| other.claim.id != NO_CLAIM);
        let own: Vec<_> = live.filter(|other| is_behind_own(&entry.claim, &other.claim)).collect();
        let counted = own.iter().filter(|other| other.is_counted);
        let counted: usize = counted.map(|other| other.claim.conflicts(&entry.claim)).sum();
        let chained = own.iter().any(|other| {
            let is_alike = other.claim.exclusive && entry.claim.exclusive;
            is_alike && other.turn.is_none() && other.claim.blocks == entry.claim.blocks
        });
        assert!(counted > 0, "no earlier claim of its owner keeps it out: {entry:?}");
        if entry.is_counted {
            assert_eq!(entry.blockers, counted, "{entry:?}");
        } else {
            assert!(chained, "it is behind none: {entry:?}");
        }
    }

    /// Checks that the claims of its own owner which keep a claim waiting are awaited if others
    /// wait for its command, or for that of a later claim that waits for it; and that no claim of
    /// another owner is awaited while it waits.
    fn check_own_awaited(&self, claims: &Claims, waiting: &[&ClaimEntry]) {
        let ineligible = waiting.iter().filter(|entry| entry.turn.is_none());
        for entry in ineligible.clone() {
            let owner = &entry.claim.owner;
            assert!(
                entry.has_awaited_blockers
                    || !self.marks_own_blockers(owner, entry.claim.exclusive)
            );
            let is_blocker = |other: &&ClaimEntry| {
                other.claim.id != NO_CLAIM && is_behind_own(&entry.claim, &other.claim)
            };
            for other in
                claims.entries.iter().filter(is_blocker).filter(|_| entry.has_awaited_blockers)
            {
                let waits = other.held_at.is_none() && other.turn.is_none();
                let is_awaited = other.is_awaited && (other.has_awaited_blockers || !waits);
                assert!(is_awaited || !other.is_counted, "{other:?} delays {entry:?}");
            }
        }
        let mut awaited = waiting.iter().filter(|entry| entry.is_awaited);
        assert!(awaited.all(|entry| self.marks_own_blockers(&entry.claim.owner, false)));
    }

    /// Checks the counts for the limits of waiting claims.
    fn check_limits(&self, claims: &Claims) {
        let mut of_owners = 0;
        for owner in self.owners.iter().skip(1) {
            let is_own = |waiting: &&ModelWaiting| waiting.claim.is_of(&Some(Arc::clone(owner)));
            let own = self.model.waiting.iter().filter(is_own).count();
            assert_eq!(claims.waiting_of(&Some(Arc::clone(owner))), own);
            of_owners += own;
        }
        assert_eq!(claims.waiting_of_owners, of_owners);
    }
}

/// Checks that each held claim for which an eligible claim of another owner waits makes its command
/// awaited.
fn check_awaited(claims: &Claims, waiting: &[&ClaimEntry]) {
    for held in claims.entries.iter().filter(|entry| entry.held_at.is_some()) {
        let waits = |other: &&&ClaimEntry| {
            let other = &other.claim;
            !other.is_of(&held.claim.owner) && other.excludes(&held.claim)
        };
        let eligible = waiting.iter().filter(|entry| entry.turn.is_some());
        if let (Some(command), Some(other)) = (&held.command, eligible.clone().find(waits)) {
            assert!(held.is_awaited, "{held:?} delays {other:?}");
            assert!(command.is_awaited());
        }
    }
}

proptest! {
    /// Goal: blocks of claims overlap if they have a block in common, and are found then; and the
    /// overlaps of a set of claims are as many as those of its claims together.
    #[test]
    fn claims_overlap_by_common_blocks(
        one in prop::collection::vec((0..80u64, 0..5u64), 0..24),
        other in prop::collection::vec((0..80u64, 0..5u64), 0..24),
    ) {
        let blocks = |ranges: &[(u64, u64)]| {
            ranges.iter().flat_map(|(lba, count)| *lba..lba + count).collect::<BTreeSet<_>>()
        };
        let claimed = |ranges: &[(u64, u64)]| {
            let ranges = ranges.iter().map(|(lba, count)| LbaRange { lba: *lba, count: *count });
            ClaimedBlocks::of(&ranges.collect::<Vec<_>>())
        };
        let common = !blocks(&one).is_disjoint(&blocks(&other));
        prop_assert_eq!(claimed(&one).overlap(&claimed(&other)), common);
        // If ranges overlap, the spans of their lists overlap.
        let spans = |blocks: &ClaimedBlocks| blocks.spans().collect::<Vec<_>>();
        let mut counter = OverlapCounter::default();
        let (one, other) = (claimed(&one), claimed(&other));
        counter.add(&one);
        counter.add(&other);
        counter.sort();
        prop_assert_eq!(counter.count(&other), other.overlaps(&one) + other.overlaps(&other));
        let (one, other) = (spans(&one), spans(&other));
        let meets = |a: &Range<u64>| other.iter().any(|b| a.start < b.end && b.start < a.end);
        prop_assert!(!common || one.iter().any(meets));
        prop_assert!(one.len() <= 8 && one.windows(2).all(|pair| pair[0].end < pair[1].start));
    }

    /// Goal: after any sequence of steps the held claims are those that checking all anew would
    /// hold, the counts are right, no claim waits without a reason, and claims that exclude each
    /// other are held together only because of the head of the queue or blocked readers. In the end
    /// all are granted, their waiters are woken, and no claim is left.
    #[test]
    fn claims_are_those_of_the_model(steps in steps()) {
        // Locks that number all claims: the model has the same ids.
        let locks = Arc::new(RangeLocks::of_unit());
        let mut rig = Rig { locks, ..Rig::default() };
        for step in steps {
            rig.step(&step);
            rig.check();
        }
        rig.shares.clear();
        // Claims at the head of the queue and claims that block readers also block older ones.
        let (forced, mut others): (Vec<_>, Vec<_>) = std::mem::take(&mut rig.queued)
            .into_iter()
            .partition(|queued| rig.model.forced.contains(&queued.guard.id));
        for queued in forced {
            prop_assert!(queued.granted().now_or_never().is_some());
        }
        while !others.is_empty() {
            let held = first_held(&rig.locks);
            let at = others.iter().position(|queued| Some(queued.guard.id) == held);
            prop_assert!(at.is_some(), "claims wait, and none is held");
            let queued = others.swap_remove(at.unwrap());
            prop_assert!(queued.granted().now_or_never().is_some());
        }
        prop_assert!(rig.locks.claims().held.is_empty() && rig.locks.claims().waiting == 0);
        prop_assert_eq!(rig.locks.shares.load(SeqCst), 0);
        prop_assert!(rig.locks.claims().is_unused());
    }
}

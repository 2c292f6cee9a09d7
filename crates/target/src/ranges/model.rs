//! Range locks against a model that judges every claim anew at every step.

use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// What happens to the locks.
#[derive(Clone, Debug)]
enum Step {
    Queue {
        ranges: Vec<LbaRange>,
        exclusive: bool,
    },
    AtHead(LbaRange),
    TryLock(LbaRange),
    Share,
    /// A held claim is released, a waiting one abandoned.
    Drop(usize),
    DropHeld(usize),
    DropShare(usize),
    Seclude(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..12u64, 0..5u64).prop_map(|(lba, count)| LbaRange { lba, count });
    let step = prop_oneof![
        8 => (prop::collection::vec(range(), 1..4), any::<bool>())
            .prop_map(|(ranges, exclusive)| Step::Queue { ranges, exclusive }),
        1 => range().prop_map(Step::AtHead),
        1 => range().prop_map(Step::TryLock),
        2 => Just(Step::Share),
        2 => any::<usize>().prop_map(Step::Drop),
        5 => any::<usize>().prop_map(Step::DropHeld),
        2 => any::<usize>().prop_map(Step::DropShare),
        1 => any::<usize>().prop_map(Step::Seclude),
    ];
    prop::collection::vec(step, 0..80)
}

/// The claims as they have to be.
#[derive(Default)]
struct Model {
    held: Vec<Claim>,
    waiting: Vec<Claim>,
    shares: usize,
    /// Claims that may be held beside others that exclude them.
    forced: BTreeSet<u64>,
}

impl Model {
    /// Grants every claim that neither a held nor an earlier waiting one excludes.
    fn grant(&mut self) {
        let mut still_waiting: Vec<Claim> = Vec::new();
        for claim in self.waiting.drain(..) {
            let mut before = self.held.iter().chain(&still_waiting);
            if before.any(|other| other.excludes(&claim)) || (claim.exclusive && self.shares > 0) {
                still_waiting.push(claim);
            } else {
                self.held.push(claim);
            }
        }
        self.waiting = still_waiting;
    }

    fn has_exclusive(&self) -> bool {
        self.held.iter().chain(&self.waiting).any(|claim| claim.exclusive)
    }

    fn remove(&mut self, id: u64) {
        self.held.retain(|claim| claim.id != id);
        self.waiting.retain(|claim| claim.id != id);
    }
}

/// The locks, what was taken of them, and their model.
#[derive(Default)]
struct Rig {
    locks: Arc<RangeLocks>,
    queued: Vec<RangeQueued>,
    shares: Vec<Share<Arc<RangeLocks>>>,
    model: Model,
}

impl Rig {
    fn claim(&self, queued: &RangeQueued, blocks: ClaimedBlocks, exclusive: bool) -> Claim {
        Claim {
            id: queued.guard.id,
            slot: queued.guard.slot,
            blocks,
            exclusive,
            secluded: false,
            of_copy: false,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Queue { ref ranges, exclusive } => {
                let blocks = ClaimedBlocks::of(ranges);
                let queued = self.locks.queue(blocks.clone(), exclusive);
                self.model.waiting.push(self.claim(&queued, blocks, exclusive));
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
                    let mut others = self.model.held.iter().chain(&self.model.waiting);
                    assert!(!others.any(|other| other.excludes(&claim)));
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
            Step::Seclude(which) if !self.model.held.is_empty() => {
                let at = which % self.model.held.len();
                let claim = &mut self.model.held[at];
                (claim.exclusive, claim.secluded) = (true, true);
                self.model.forced.insert(claim.id);
                let queued = self.queued.iter().find(|queued| queued.guard.id == claim.id);
                queued.unwrap().guard.seclude();
            }
            _ => {}
        }
        self.model.grant();
    }

    fn check(&self) {
        let mut claims = self.locks.claims();
        let ids = |claims: &[Claim]| claims.iter().map(|claim| claim.id).collect::<BTreeSet<_>>();
        let waiting: Vec<Claim> =
            claims.waiting.iter().map(|waiting| waiting.claim.clone()).collect();
        assert_eq!(ids(&claims.held), ids(&self.model.held));
        assert_eq!(ids(&waiting), ids(&self.model.waiting));
        assert!(waiting.is_sorted_by_key(|claim| claim.id));
        for (at, waiting) in claims.waiting.iter().enumerate() {
            let earlier = claims.waiting.iter().take(at).map(|earlier| &earlier.claim);
            let before = claims.held.iter().chain(earlier);
            let blockers = before.filter(|other| other.excludes(&waiting.claim)).count();
            assert_eq!(waiting.blockers, blockers, "{waiting:?}");
            let by_shares = waiting.claim.exclusive && !self.shares.is_empty();
            assert!(blockers > 0 || by_shares, "nothing keeps it out: {waiting:?}");
        }
        for (at, one) in claims.held.iter().enumerate() {
            for other in claims.held.iter().take(at).filter(|other| other.excludes(one)) {
                let forced = |claim: &Claim| self.model.forced.contains(&claim.id);
                assert!(forced(one) || forced(other), "both are held: {one:?} {other:?}");
            }
        }
        let all = claims.held.iter().chain(&waiting);
        let exclusive = all.filter(|claim| claim.exclusive).count();
        assert_eq!(claims.exclusive_claims, exclusive);
        let bit = if exclusive > 0 { EXCLUSIVE } else { 0 };
        assert_eq!(self.locks.shares.load(SeqCst), (self.shares.len() * SHARE) | bit);
        for RangeQueued { guard, .. } in &self.queued {
            let is_held = claims.held.iter().any(|held| held.id == guard.id);
            let in_slot = claims.held_mut(guard.slot).map(|held| held.id);
            assert_eq!(in_slot, is_held.then_some(guard.id));
        }
        let secluded = claims.held.iter().filter(|claim| claim.secluded).count();
        assert_eq!(self.locks.secluded.load(SeqCst), secluded);
    }
}

proptest! {
    /// Goal: blocks of claims overlap where they have a block in common.
    #[test]
    fn blocks_overlap_by_what_they_have_in_common(
        one in prop::collection::vec((0..40u64, 0..5u64), 0..6),
        other in prop::collection::vec((0..40u64, 0..5u64), 0..6),
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
    }

    /// Goal: whatever happens, those are held who would be if all were judged anew, the counts are
    /// right, nobody waits for nothing, and claims that exclude each other are held together only
    /// where the head of the queue or seclusion has it so. In the end all are granted in order,
    /// their waiters know it, and nothing is left.
    #[test]
    fn claims_are_those_of_the_model(steps in steps()) {
        let mut rig = Rig::default();
        for step in steps {
            rig.step(&step);
            rig.check();
        }
        rig.shares.clear();
        let mut queued = std::mem::take(&mut rig.queued);
        queued.sort_by_key(|queued| queued.guard.id);
        // Claims at the head of the queue and secluded ones keep older ones out.
        let (forced, others): (Vec<_>, Vec<_>) =
            queued.into_iter().partition(|queued| rig.model.forced.contains(&queued.guard.id));
        for queued in forced.into_iter().chain(others) {
            prop_assert!(queued.granted().now_or_never().is_some());
        }
        prop_assert!(rig.locks.claims().held.is_empty() && rig.locks.claims().waiting.is_empty());
        prop_assert_eq!(rig.locks.shares.load(SeqCst), 0);
    }
}

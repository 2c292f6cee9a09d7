//! Tests that owners take turns at blocks that they share.

use super::claims::{COMPARISONS, OWNER_WAITING_MAX};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

type Owner = Arc<MemoryOwner>;

fn range(lba: u64, count: u64) -> LbaRange {
    LbaRange { lba, count }
}

fn is_held(locks: &Arc<RangeLocks>, queued: &RangeQueued) -> bool {
    locks.claims().held_mut(queued.guard.id, queued.guard.slot).is_some()
}

/// Releases the held one of these claims.
fn release_held(locks: &Arc<RangeLocks>, queued: &mut Vec<RangeQueued>) {
    let at = queued.iter().position(|queued| is_held(locks, queued)).unwrap();
    drop(queued.remove(at));
}

/// Goal: however many claims of another owner wait for its block, a write waits for one that is
/// held, each time anew; and the other owner continues in between. Without this, 300 sessions of
/// COMPARE AND WRITE made another host's write wait 19 s.
#[test]
fn a_claim_waits_for_one_of_each_other_owner() {
    let (locks, busy, victim) =
        (Arc::new(RangeLocks::default()), Owner::default(), Owner::default());
    let claim = |owner, exclusive| locks.queue_for(owner, range(0, 1), exclusive).unwrap();
    let mut many: Vec<_> = (0..OWNER_WAITING_MAX).map(|_| claim(&busy, true)).collect();
    for _ in 0..10 {
        let write = claim(&victim, false);
        assert!(!is_held(&locks, &write));
        release_held(&locks, &mut many);
        assert!(is_held(&locks, &write));
        many.push(claim(&busy, true));
        drop(write);
        assert!(is_held(&locks, &many[0]), "those of one owner in order of arrival");
    }
    // One claim each of three owners.
    let third = Owner::default();
    let (one, other) = (claim(&victim, true), claim(&third, true));
    let second = claim(&victim, true);
    release_held(&locks, &mut many);
    assert!(is_held(&locks, &one));
    drop(one);
    assert!(is_held(&locks, &other));
    drop(other);
    assert!(is_held(&locks, &many[0]));
    release_held(&locks, &mut many);
    assert!(is_held(&locks, &second));
    drop(second);
    while !many.is_empty() {
        release_held(&locks, &mut many);
    }
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Goal: a command is awaited exactly while it holds blocks for which another owner has waited; its
/// connection then polls it, whether it held the blocks before or they are granted to it now.
#[test]
fn holders_are_awaited_while_other_owners_wait() {
    let locks = Arc::new(RangeLocks::default());
    let owners: [Owner; 3] = Default::default();
    let commands: [AbortSignal; 5] = Default::default();
    let claim = |owner: usize, command: usize, exclusive| {
        let command = Some(&commands[command]);
        locks.queue_for_command(&owners[owner], command, range(0, 1), exclusive).unwrap()
    };
    let awaited = || commands.each_ref().map(AbortSignal::is_awaited);
    let holder = claim(0, 0, false);
    let own = claim(0, 1, true);
    assert_eq!(awaited(), [false; 5], "no other owner waits");
    let alone = claim(1, 2, true);
    assert_eq!(awaited(), [true, false, false, false, false]);
    let write = claim(2, 3, false);
    drop(holder);
    assert!(is_held(&locks, &alone));
    assert_eq!(awaited(), [false, false, true, false, false], "granted, and waited for");
    drop(alone);
    assert!(is_held(&locks, &write));
    assert_eq!(awaited(), [false, false, false, true, false], "the next of the first owner");
    drop(write);
    assert!(is_held(&locks, &own));
    assert_eq!(awaited(), [false; 5]);
    let server = locks.queue(range(0, 8), true);
    assert_eq!(awaited(), [false, true, false, false, false], "the server waits as well");
    drop(own);
    drop(server);
    // A claim that becomes eligible when the earlier one of its owner ends.
    let first = claim(0, 0, true);
    let holder = locks.queue_for_command(&owners[1], Some(&commands[4]), range(1, 1), false);
    let second = locks.queue_for_command(&owners[0], Some(&commands[1]), range(0, 2), true);
    assert_eq!(awaited(), [false; 5], "not eligible yet");
    drop(first);
    assert_eq!(awaited(), [false, false, false, false, true]);
    drop((holder, second));
    assert_eq!(awaited(), [false; 5]);
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Goal: if other owners wait for a command, those of its own owner are awaited whose claims keep
/// its claim waiting, directly or through others, also if they wait in a chain.
#[test]
fn claims_that_delay_an_awaited_command_are_awaited() {
    let locks = Arc::new(RangeLocks::default());
    let owner = Owner::default();
    let commands: [AbortSignal; 7] = Default::default();
    let claim = |command: usize, at: u64, exclusive: bool| {
        let command = Some(&commands[command]);
        locks.queue_for_command(&owner, command, range(at, 1), exclusive).unwrap()
    };
    let awaited = || commands.each_ref().map(AbortSignal::is_awaited);
    let (first, elsewhere) = (claim(0, 0, false), claim(1, 1, false));
    let (alone, second) = (claim(2, 0, true), claim(3, 0, false));
    let other_alone = claim(4, 0, true);
    let last = claim(5, 0, false);
    assert_eq!(awaited(), [false; 7]);
    last.mark_own_blockers_awaited();
    last.mark_own_blockers_awaited();
    assert_eq!(awaited(), [true, false, true, false, false, false, false], "the front's");
    let later = claim(6, 0, true);
    drop(first);
    assert!(is_held(&locks, &alone));
    assert_eq!(awaited(), [false, false, true, true, true, false, false]);
    drop(alone);
    assert!(is_held(&locks, &second) && !is_held(&locks, &other_alone));
    assert_eq!(awaited(), [false, false, false, true, true, false, false]);
    drop(second);
    assert_eq!(awaited(), [false, false, false, false, true, false, false]);
    drop(other_alone);
    assert!(is_held(&locks, &last));
    last.mark_own_blockers_awaited();
    assert_eq!(awaited(), [false; 7], "it waits for none");
    drop((last, elsewhere));
    assert!(is_held(&locks, &later));
    drop(later);
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Goal: a wide claim is granted as soon as those that came before it have ended,
/// however many narrow ones of other owners come.
#[test]
fn narrow_claims_do_not_starve_a_wide_one() {
    let (locks, owner) = (Arc::new(RangeLocks::default()), Owner::default());
    let narrow = |at| locks.queue_for(&Owner::default(), range(at, 1), true).unwrap();
    let mut before = vec![narrow(0), narrow(1)];
    let wide = locks.queue_for(&owner, range(0, 8), false).unwrap();
    let mut behind = Vec::new();
    for at in 0..100 {
        behind.push(narrow(at % 8));
        assert!(!is_held(&locks, behind.last().unwrap()), "not before the wide one");
    }
    release_held(&locks, &mut before);
    assert!(!is_held(&locks, &wide), "all or nothing");
    release_held(&locks, &mut before);
    assert!(is_held(&locks, &wide));
    assert_eq!(locks.claims().held.len(), 1);
    drop(wide);
    assert_eq!(locks.claims().held.len(), 8);
    while !behind.is_empty() {
        release_held(&locks, &mut behind);
    }
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Goal: a release that makes many claims of an owner eligible looks at each waiting claim three
/// times at most, however many become eligible, are not eligible, or are held.
#[test]
fn the_work_is_linear_where_many_become_eligible() {
    const CLAIMS: u64 = 1000;
    let locks = Arc::new(RangeLocks::default());
    let owners: [Owner; 4] = Default::default();
    let claim = |owner: &Owner, at, count| locks.queue_for(owner, range(at, count), true).unwrap();
    let elsewhere: Vec<_> = (0..CLAIMS).map(|at| claim(&owners[3], 9000 + at, 1)).collect();
    let wide = claim(&owners[0], 0, CLAIMS);
    let mut queued: Vec<_> = (0..CLAIMS).map(|at| claim(&owners[0], at, 1)).collect();
    for owner in &owners[1..3] {
        queued.push(claim(owner, 0, CLAIMS));
        queued.extend((0..CLAIMS).map(|at| claim(owner, at, 1)));
    }
    let release = |queued: RangeQueued| {
        let waiting = locks.claims().waiting;
        let before = COMPARISONS.get();
        drop(queued);
        let done = COMPARISONS.get() - before;
        assert!(done <= 3 * waiting + 64, "{done} comparisons while {waiting} claims waited");
    };
    release(wide);
    while !queued.is_empty() {
        let at = queued.iter().rposition(|queued| is_held(&locks, queued)).unwrap();
        release(queued.swap_remove(at));
    }
    drop(elsewhere);
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
    assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 1));
}

#[derive(Clone, Debug)]
enum Step {
    Queue { owner: usize, ranges: Vec<LbaRange>, exclusive: bool },
    Release(usize),
    Abandon(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ranges = prop_oneof![
        3 => Just(vec![range(0, 1)]),
        1 => prop::collection::vec((0..8u64, 1..4u64).prop_map(|(at, n)| range(at, n)), 1..3),
    ];
    let step = prop_oneof![
        // The first owner has the most claims.
        6 => (prop_oneof![3 => Just(0), 1 => 1..4usize], ranges, prop::bool::weighted(0.7))
            .prop_map(|(owner, ranges, exclusive)| Step::Queue { owner, ranges, exclusive }),
        4 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::Abandon),
    ];
    prop::collection::vec(step, 0..120)
}

/// A claim that has not ended, seen from outside.
struct ClaimView {
    number: usize,
    owner: usize,
    blocks: ClaimedBlocks,
    exclusive: bool,
    queued: RangeQueued,
    is_held: bool,
    /// Claims of others that exclude it and have been held since no claim of its own owner does.
    waited_for: BTreeSet<usize>,
}

impl ClaimView {
    fn excludes(&self, other: &Self) -> bool {
        self.number != other.number
            && (self.exclusive || other.exclusive)
            && self.blocks.overlap(&other.blocks)
    }
}

#[derive(Default)]
struct Watch {
    locks: Arc<RangeLocks>,
    owners: [Owner; 4],
    claims: Vec<ClaimView>,
    /// For each claim: its owner, and the claims of that owner that it excludes.
    compatible: Vec<(usize, BTreeSet<usize>)>,
}

impl Watch {
    fn step(&mut self, step: &Step) {
        let ending = |is_held: bool, which: usize, claims: &[ClaimView]| {
            let ending = (0..claims.len()).filter(|at| claims[*at].is_held == is_held);
            let ending: Vec<_> = ending.collect();
            (!ending.is_empty()).then(|| ending[which % ending.len()])
        };
        let ending = match *step {
            Step::Queue { owner, ref ranges, exclusive } => {
                self.queue(owner, ClaimedBlocks::of(ranges), exclusive);
                None
            }
            Step::Release(which) => ending(true, which, &self.claims),
            Step::Abandon(which) => ending(false, which, &self.claims),
        };
        if let Some(at) = ending {
            drop(self.claims.remove(at));
        }
        self.check_claims();
    }

    fn queue(&mut self, owner: usize, blocks: ClaimedBlocks, exclusive: bool) {
        let number = self.compatible.len();
        let queued = self.locks.queue_for(&self.owners[owner], blocks.clone(), exclusive).unwrap();
        let waited_for = BTreeSet::new();
        let new =
            ClaimView { number, owner, blocks, exclusive, queued, is_held: false, waited_for };
        let own = self.claims.iter().filter(|other| other.owner == owner && other.excludes(&new));
        let excluded = own.map(|other| other.number).collect();
        self.compatible.push((owner, excluded));
        self.claims.push(new);
    }

    /// Checks the held claims.
    fn check_claims(&mut self) {
        for claim in &mut self.claims {
            let is_held = is_held(&self.locks, &claim.queued);
            assert!(is_held || !claim.is_held, "a held claim is not revoked");
            claim.is_held = is_held;
        }
        for at in 0..self.claims.len() {
            let claim = &self.claims[at];
            let others = || self.claims.iter().filter(|other| other.excludes(claim));
            let mut earlier_own =
                others().filter(|other| other.owner == claim.owner && other.number < claim.number);
            if claim.is_held {
                assert!(!others().any(|other| other.is_held), "two that exclude each other");
                assert!(earlier_own.next().is_none(), "not in the order of its owner");
            } else if earlier_own.next().is_none() {
                let held = others().filter(|other| other.is_held).map(|other| other.number);
                let held: Vec<_> = held.collect();
                self.claims[at].waited_for.extend(held);
                self.check_turns(&self.claims[at]);
            }
        }
    }

    /// Checks that the claims of another owner for which a claim has waited do not exclude each
    /// other.
    fn check_turns(&self, claim: &ClaimView) {
        for number in &claim.waited_for {
            let (owner, excluded) = &self.compatible[*number];
            let mut others = claim.waited_for.iter().filter(|other| excluded.contains(other));
            assert!(
                others.next().is_none(),
                "claim {} of {} has waited for two turns of {owner}: {:?}",
                claim.number,
                claim.owner,
                claim.waited_for,
            );
        }
    }
}

proptest! {
    /// Goal: claims that exclude each other are never held together; those of one owner are held in
    /// order of arrival; once no claim of its own owner blocks it, a claim waits for one turn of
    /// each other owner (one claim, or several that do not exclude each other); and all are granted
    /// in the end.
    #[test]
    fn owners_take_turns(steps in steps()) {
        let mut watch = Watch::default();
        for step in steps {
            watch.step(&step);
        }
        while !watch.claims.is_empty() {
            prop_assert!(watch.claims.iter().any(|claim| claim.is_held), "all wait");
            watch.step(&Step::Release(0));
        }
        let claims = watch.locks.claims();
        prop_assert!(claims.held.is_empty() && claims.waiting == 0);
        prop_assert_eq!(claims.exclusive_claims, 0);
        prop_assert!(watch.owners.iter().all(|owner| Arc::strong_count(owner) == 1));
    }
}

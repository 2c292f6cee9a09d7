use super::claims::{COMPARISONS, OWNER_WAITING_MAX, WAITING_MAX};
use super::*;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::ops::DerefMut;

/// Locked claims, created if there are none.
pub(super) struct LockedClaims<'a>(MutexGuard<'a, Option<Box<Claims>>>);

impl RangeLocks {
    pub(super) fn claims(&self) -> LockedClaims<'_> {
        let mut locked = self.lock_claims();
        locked.get_or_insert_default();
        LockedClaims(locked)
    }

    /// Takes a position in the queue for an owner without a command.
    pub(crate) fn queue_for(
        self: &Arc<Self>,
        owner: &Arc<MemoryOwner>,
        range: impl Into<ClaimedBlocks>,
        exclusive: bool,
    ) -> Result<RangeQueued, TooManyWaiting> {
        self.queue_for_command(owner, None, range, exclusive)
    }
}

impl Deref for LockedClaims<'_> {
    type Target = Claims;

    fn deref(&self) -> &Claims {
        self.0.as_deref().unwrap()
    }
}

impl DerefMut for LockedClaims<'_> {
    fn deref_mut(&mut self) -> &mut Claims {
        self.0.as_deref_mut().unwrap()
    }
}

fn range(lba: u64, count: u64) -> LbaRange {
    LbaRange { lba, count }
}

#[test]
fn writers_share_and_the_exclusive_waits_for_them_all() {
    let locks = Arc::new(RangeLocks::default());
    let first = locks.lock(range(0, 8), false).now_or_never().unwrap();
    let second = locks.lock(range(4, 8), false).now_or_never().unwrap();
    let mut alone = Box::pin(locks.lock(range(7, 1), true));
    assert!((&mut alone).now_or_never().is_none());
    let mut late = Box::pin(locks.lock(range(7, 1), false));
    assert!((&mut late).now_or_never().is_none(), "behind the one that waits");
    assert!(locks.lock(range(100, 1), true).now_or_never().is_some(), "elsewhere is free");
    drop(first);
    assert!((&mut alone).now_or_never().is_none());
    drop(second);
    let alone = alone.now_or_never().unwrap();
    assert!((&mut late).now_or_never().is_none());
    drop(alone);
    drop(late.now_or_never().unwrap());
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// SAM-5 §8: HEAD OF QUEUE waits for no other command, not even for an exclusive one, and no
/// command that has not begun goes before it.
#[test]
fn head_of_queue_precedes_all_other_commands() {
    let locks = Arc::new(RangeLocks::default());
    let simple = locks.lock(range(0, 1), false).now_or_never().unwrap();
    let mut ordered = Box::pin(locks.lock(range(0, 1), true));
    assert!((&mut ordered).now_or_never().is_none());
    let head = locks.at_head(range(0, 1)).granted().now_or_never().unwrap();
    let second = locks.at_head(range(0, 1)).granted().now_or_never().unwrap();
    drop(simple);
    assert!((&mut ordered).now_or_never().is_none(), "older, and yet not before the head");
    drop(head);
    let mut late = Box::pin(locks.lock(range(0, 1), false));
    assert!((&mut ordered).now_or_never().is_none());
    drop(second);
    let ordered = ordered.now_or_never().unwrap();
    assert!((&mut late).now_or_never().is_none());
    let head = locks.at_head(range(0, 1)).granted().now_or_never().unwrap();
    drop(ordered);
    assert!((&mut late).now_or_never().is_none());
    drop(head);
    drop(late.now_or_never().unwrap());
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
    assert_eq!(locks.claims().exclusive_claims, 0);
}

/// Later readers and writers of a range that is blocked for readers wait; earlier sharers continue,
/// and a release leaves no claim behind.
#[test]
fn a_range_blocked_for_readers_is_waited_for_by_all() {
    let locks = Arc::new(RangeLocks::default());
    let left = locks.lock(range(0, 8), false).now_or_never().unwrap();
    let other_lock = locks.lock(range(4, 8), false).now_or_never().unwrap();
    assert!(locks.wait_until_readable(range(0, 8)).now_or_never().is_some(), "reads take no lock");
    left.block_readers();
    left.block_readers();
    drop(other_lock);
    let mut read = Box::pin(locks.wait_until_readable(range(7, 100)));
    let mut write = Box::pin(locks.lock(range(7, 1), false));
    assert!((&mut read).now_or_never().is_none());
    assert!((&mut write).now_or_never().is_none());
    assert!(locks.wait_until_readable(range(8, 1)).now_or_never().is_some(), "elsewhere is free");
    assert!(locks.lock(range(8, 1), false).now_or_never().is_some());
    drop(left);
    assert!(read.now_or_never().is_some());
    drop(write.now_or_never().unwrap());
    assert_eq!((locks.blocks_readers.load(SeqCst), locks.claims().exclusive_claims), (0, 0));
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Shares of everything without a position in the queue block an exclusive claim of any range, and
/// the exclusive claim blocks later shares from when it waits to when it is gone.
#[test]
fn shares_and_exclusive_claims_wait_for_each_other() {
    let locks = Arc::new(RangeLocks::default());
    let _elsewhere = locks.lock(range(100, 1), false).now_or_never().unwrap();
    let first = RangeLocks::try_share(&*locks).unwrap();
    let second = RangeLocks::try_share(Arc::clone(&locks)).unwrap();
    let mut alone = Box::pin(locks.lock(range(0, 1), true));
    let mut other = Box::pin(locks.lock(range(8, 1), true));
    assert!((&mut alone).now_or_never().is_none());
    assert!((&mut other).now_or_never().is_none());
    assert!(RangeLocks::try_share(&*locks).is_none());
    drop(first);
    assert!((&mut alone).now_or_never().is_none());
    drop(second);
    let (alone, other) = (alone.now_or_never().unwrap(), other.now_or_never().unwrap());
    drop(alone);
    assert!(RangeLocks::try_share(&*locks).is_none(), "the other claim is still held");
    drop(other);
    let share = RangeLocks::try_share(&*locks).unwrap();
    let head = locks.at_head(range(0, 1)).granted().now_or_never().unwrap();
    assert!(RangeLocks::try_share(&*locks).is_none(), "behind the head");
    drop((share, head));
    assert_eq!(locks.shares.load(SeqCst), 0);
}

/// Sharing is possible again when a waiter is cancelled, and when a range blocked for readers is
/// released.
#[test]
fn sharing_resumes_when_a_blocker_is_gone() {
    let locks = Arc::new(RangeLocks::default());
    let share = RangeLocks::try_share(&*locks).unwrap();
    let mut waiter = Box::pin(locks.lock(range(0, 1), true));
    assert!((&mut waiter).now_or_never().is_none());
    drop(waiter);
    drop(RangeLocks::try_share(&*locks).unwrap());
    drop(share);
    let left = locks.lock(range(0, 1), false).now_or_never().unwrap();
    left.block_readers();
    assert!(RangeLocks::try_share(&*locks).is_none());
    drop(left);
    assert!(RangeLocks::try_share(&*locks).is_some());
    assert_eq!(locks.shares.load(SeqCst), 0);
}

/// Threads that share and threads that exclude never hold the locks together, and none waits for
/// ever.
#[test]
fn sharers_and_excluders_on_many_threads() {
    let locks = Arc::new(RangeLocks::default());
    let (sharers, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let share = || {
        for _ in 0..2000 {
            let Some(_share) = RangeLocks::try_share(&*locks) else { continue };
            sharers.fetch_add(1, SeqCst);
            assert_eq!(alone.load(SeqCst), 0);
            sharers.fetch_sub(1, SeqCst);
        }
    };
    let exclude = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..500 {
            let _guard = runtime.block_on(locks.lock(range(0, 1), true));
            assert_eq!(alone.fetch_add(1, SeqCst), 0);
            assert_eq!(sharers.load(SeqCst), 0);
            alone.fetch_sub(1, SeqCst);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(share);
            scope.spawn(exclude);
        }
    });
    assert_eq!(locks.shares.load(SeqCst), 0);
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// `block_readers_of_copies` blocks readers of the pieces of copies without any action of their
/// writers, and blocks no other ranges.
#[test]
fn pieces_of_copies_block_readers() {
    let locks = Arc::new(RangeLocks::default());
    let piece = locks.lock(range(0, 8), false).now_or_never().unwrap().of_copy();
    let _other = locks.lock(range(8, 8), false).now_or_never().unwrap();
    locks.block_readers_of_copies();
    assert!(locks.wait_until_readable(range(0, 1)).now_or_never().is_none());
    assert!(locks.wait_until_readable(range(8, 8)).now_or_never().is_some());
    drop(piece);
    assert!(locks.wait_until_readable(range(0, 16)).now_or_never().is_some());
}

/// A waiter that is dropped before or after its grant leaves no claim behind.
#[test]
fn dropped_waiters_hold_no_claims() {
    let locks = Arc::new(RangeLocks::default());
    let held = locks.lock(range(0, 1), true).now_or_never().unwrap();
    let mut waiter = Box::pin(locks.lock(range(0, 1), true));
    assert!((&mut waiter).now_or_never().is_none());
    drop(waiter);
    let mut granted = Box::pin(locks.lock(range(0, 1), true));
    assert!((&mut granted).now_or_never().is_none());
    drop(held);
    drop(granted);
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// The id of the claim held last.
fn last_held(locks: &RangeLocks) -> u64 {
    let claims = locks.claims();
    claims.claim(*claims.held.last().unwrap()).id
}

/// Number of comparisons of claims while `action` runs.
fn comparisons(action: impl FnOnce()) -> usize {
    let before = COMPARISONS.get();
    action();
    COMPARISONS.get() - before
}

/// Fault: each release compared every waiting claim with all that were held and all that still
/// waited, so that 64 sessions of one host stopped a disk, and its core, for seconds.
#[test]
fn the_work_of_a_release_is_linear_in_waiting_claims() {
    const CLAIMS: usize = 2000;
    type Shape = fn(&Arc<RangeLocks>) -> Vec<RangeQueued>;
    let same_and_disjoint: Shape = |locks| {
        let same = (0..=CLAIMS).map(|_| locks.queue(range(0, 1), true));
        let disjoint = (0..CLAIMS as u64).map(|at| locks.queue(range(1 + at, 1), true));
        same.chain(disjoint).collect()
    };
    let around_a_wide_one: Shape = |locks| {
        let same = (0..CLAIMS / 2).map(|_| locks.queue(range(0, 1), true));
        let wide = std::iter::once_with(|| locks.queue(range(0, 4096), false));
        let inside = (0..CLAIMS as u64 / 2).map(|at| locks.queue(range(1 + at, 1), true));
        same.chain(wide).chain(inside).collect()
    };
    for shape in [same_and_disjoint, around_a_wide_one] {
        let locks = Arc::new(RangeLocks::default());
        let mut queued = Vec::new();
        let filling = comparisons(|| queued = shape(&locks));
        assert!(filling <= queued.len() * queued.len(), "{filling} comparisons to queue all");
        while !queued.is_empty() {
            let waiting = locks.claims().waiting;
            let held = last_held(&locks);
            let at = queued.binary_search_by_key(&held, |queued| queued.guard.id);
            let released = queued.remove(at.unwrap());
            let done = comparisons(|| drop(released));
            assert!(done <= 3 * waiting + 64, "{done} comparisons while {waiting} claims waited");
        }
        assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
    }
}

/// Number of owners whose claims wait in the tests below: as many as it takes to reach all limits.
const BUSY_OWNERS: usize = WAITING_MAX / OWNER_WAITING_MAX;

/// Queues exclusive claims of [`BUSY_OWNERS`] owners up to the limits, each for the blocks of
/// `range_of`.
fn busy(locks: &Arc<RangeLocks>, range_of: impl Fn(usize) -> LbaRange) -> Vec<RangeQueued> {
    let owners: [Arc<MemoryOwner>; BUSY_OWNERS] = Default::default();
    let claim = |at: usize| locks.queue_for(&owners[at % BUSY_OWNERS], range_of(at), true);
    (0..).map_while(|at| claim(at).ok()).collect()
}

/// Maximum number of comparisons for a claim that overlaps with no waiting claim: two paths from
/// the root to a leaf in each of the trees.
const COMPARISONS_ELSEWHERE_MAX: usize = 256;

/// Fault: the beginning and the end of any claim examined all waiting claims of the unit. While 160
/// sessions of 16 addresses sent COMPARE AND WRITE of one block, the request rate of a host that
/// wrote to other blocks fell to 1 %.
#[test]
fn a_claim_does_not_visit_claims_for_other_blocks() {
    type Shape = fn(usize) -> LbaRange;
    let same: Shape = |_| range(4096, 1);
    let around_one_block: Shape = |at| range(4096 - at as u64 % 64, 65);
    // Longer than their distance to the blocks elsewhere.
    let close: Shape = |at| range(4000, 97 + at as u64 % 100);
    for shape in [same, around_one_block, close] {
        let locks = Arc::new(RangeLocks::default());
        let busy = busy(&locks, shape);
        assert_eq!(locks.claims().waiting, WAITING_MAX);
        let victim = Arc::default();
        for elsewhere in [range(0, 8), range(3999, 1), range(5000, 256)] {
            let done = comparisons(|| drop(locks.try_lock_shared(elsewhere).unwrap()));
            assert!(done <= COMPARISONS_ELSEWHERE_MAX, "{done} comparisons for a write elsewhere");
            for exclusive in [false, true] {
                let done = comparisons(|| {
                    drop(locks.queue_for(&victim, elsewhere, exclusive).unwrap());
                });
                assert!(
                    done <= COMPARISONS_ELSEWHERE_MAX,
                    "{done} comparisons for a claim elsewhere"
                );
            }
        }
        drop(busy);
        assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
    }
}

/// Fault: the end of a claim examined all claims that waited for the same block, although only one
/// of them can be granted.
#[test]
fn the_end_of_a_claim_visits_only_claims_to_be_granted() {
    let locks = Arc::new(RangeLocks::default());
    let mut busy = busy(&locks, |_| range(4096, 1));
    while !busy.is_empty() {
        let held = last_held(&locks);
        let released = busy.remove(busy.binary_search_by_key(&held, |it| it.guard.id).unwrap());
        let done = comparisons(|| drop(released));
        assert!(done <= 16 * BUSY_OWNERS, "{done} comparisons at the end of a claim");
        assert_eq!(locks.claims().held.len(), usize::from(!busy.is_empty()));
    }
    assert!(locks.claims().waiting == 0 && locks.claims().is_unused());
}

/// Waker that tries the lock of the claims.
struct LockingWaker {
    locks: Arc<RangeLocks>,
    /// Number of wakes while the claims were not locked, and while they were.
    wakes: [AtomicUsize; 2],
}

impl std::task::Wake for LockingWaker {
    fn wake(self: Arc<Self>) {
        let is_locked = self.locks.claims.try_lock().is_err();
        self.wakes[usize::from(is_locked)].fetch_add(1, SeqCst);
    }
}

/// Fault: waiters were woken while the claims of the unit were locked, and other commands waited
/// for that lock.
#[test]
fn the_claims_are_unlocked_while_waiters_are_woken() {
    let locks = Arc::new(RangeLocks::default());
    let wakes = Default::default();
    let waker = Arc::new(LockingWaker { locks: Arc::clone(&locks), wakes });
    let std_waker = Arc::clone(&waker).into();
    let mut context = std::task::Context::from_waker(&std_waker);
    let held = locks.lock(range(0, 1), true).now_or_never().unwrap();
    let mut behind_held = Box::pin(locks.lock(range(0, 1), false));
    assert!(behind_held.as_mut().poll(&mut context).is_pending());
    drop(held);
    drop(behind_held.now_or_never().unwrap());
    let share = RangeLocks::try_share(&*locks).unwrap();
    let mut behind_share = Box::pin(locks.lock(range(0, 1), true));
    assert!(behind_share.as_mut().poll(&mut context).is_pending());
    drop(share);
    drop(behind_share.now_or_never().unwrap());
    let [unlocked, locked] = waker.wakes.each_ref().map(|count| count.load(SeqCst));
    assert_eq!((unlocked, locked), (2, 0));
}

/// Fault: each release searched all held claims for its own: 64 sessions of UNMAP with 250
/// descriptors held thousands, and stopped the core.
#[test]
fn a_release_does_not_search_what_is_held() {
    const CLAIMS: u64 = 2000;
    let locks = Arc::new(RangeLocks::default());
    let mut queued: Vec<_> = (0..CLAIMS).map(|at| locks.queue(range(at, 1), false)).collect();
    // From the middle, so that the other claims change their indices.
    while !queued.is_empty() {
        let released = queued.swap_remove(queued.len() / 2);
        assert!(comparisons(|| drop(released)) <= 1);
    }
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// A claim on a list holds all its ranges and nothing between them, and waits for all at once.
#[test]
fn a_list_is_one_claim() {
    let locks = Arc::new(RangeLocks::default());
    let list = ClaimedBlocks::of(&[range(20, 4), range(0, 8), range(4, 6), range(15, 0)]);
    let guard = locks.lock(list.clone(), false).now_or_never().unwrap();
    assert_eq!(locks.claims().held.len(), 1);
    let is_free = |lba| locks.lock(range(lba, 1), true).now_or_never().is_some();
    let free: Vec<_> = (0..26).filter(|lba| is_free(*lba)).collect();
    assert_eq!(free, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 24, 25]);
    guard.block_readers();
    assert!(locks.wait_until_readable(range(23, 1)).now_or_never().is_none());
    assert!(locks.wait_until_readable(range(10, 10)).now_or_never().is_some());
    drop(guard);
    let alone = locks.lock(range(21, 1), true).now_or_never().unwrap();
    let mut waits = Box::pin(locks.lock(list, false));
    assert!((&mut waits).now_or_never().is_none());
    assert!(locks.claims().held.len() == 1, "it holds nothing while it waits");
    drop(alone);
    drop(waits.now_or_never().unwrap());
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// The last share lets in all exclusive claims without comparing any.
#[test]
fn the_end_of_a_share_compares_no_claims() {
    let locks = Arc::new(RangeLocks::default());
    let share = RangeLocks::try_share(&*locks).unwrap();
    let queued: Vec<_> = (0..100).map(|at| locks.queue(range(at, 1), true)).collect();
    assert_eq!(comparisons(|| drop(share)), 0);
    assert!(queued.into_iter().all(|queued| queued.granted().now_or_never().is_some()));
}

/// Goal: neither an owner nor all owners together have more waiting claims than their limit; claims
/// that need not wait are always accepted, and claims that no longer wait do not count.
#[test]
fn waiting_claims_are_limited_by_owner() {
    let locks = Arc::new(RangeLocks::default());
    let owners: Vec<Arc<MemoryOwner>> = (0..9).map(|_| Arc::default()).collect();
    let wait = |owner: &Arc<MemoryOwner>| locks.queue_for(owner, range(0, 1), true);
    let held = wait(&owners[0]).unwrap();
    let mut queued: Vec<_> = (0..OWNER_WAITING_MAX).map(|_| wait(&owners[0]).unwrap()).collect();
    assert!(wait(&owners[0]).is_err());
    assert!(locks.queue_for(&owners[0], range(0, 1), false).is_err());
    assert!(locks.queue_for(&owners[0], range(1, 1), true).is_ok(), "it need not wait");
    drop(held);
    let held = queued.remove(0);
    queued.push(wait(&owners[1]).unwrap());
    queued.push(wait(&owners[0]).unwrap());
    assert!(wait(&owners[0]).is_err(), "one was granted, one has come");
    queued.pop(); // abandoned
    queued.push(wait(&owners[0]).unwrap());
    let exclusive = locks.claims().exclusive_claims;
    for owner in &owners[1..8] {
        queued.extend(std::iter::from_fn(|| wait(owner).ok()));
    }
    assert_eq!(queued.len(), WAITING_MAX);
    assert_eq!(locks.claims().exclusive_claims, exclusive + WAITING_MAX - OWNER_WAITING_MAX - 1);
    let first = wait(&owners[8]).unwrap();
    assert!(wait(&owners[8]).is_err(), "all have as many as they may together");
    drop(first);
    let unlimited = locks.queue(range(0, 1), true);
    assert!(!unlimited.is_granted(), "claims of the server itself may always wait");
    // From the last one on: nothing is granted, and no count of another claim is looked at.
    drop(unlimited);
    while queued.pop().is_some() {}
    drop(held);
    assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 1));
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
    assert_eq!((locks.claims().exclusive_claims, locks.shares.load(SeqCst)), (0, 0));
}

/// A refused claim blocks no others: everything can still be shared.
#[test]
fn a_refused_claim_leaves_nothing() {
    let locks = Arc::new(RangeLocks::default());
    let owner = Arc::default();
    let share = RangeLocks::try_share(&*locks).unwrap();
    let wait = || locks.queue_for(&owner, range(0, 1), true);
    let queued: Vec<_> = (0..OWNER_WAITING_MAX).map(|_| wait().unwrap()).collect();
    assert!(wait().is_err());
    assert!(RangeLocks::try_share(&*locks).is_none());
    drop(queued);
    assert!(wait().is_ok());
    drop(RangeLocks::try_share(&*locks).unwrap());
    drop(share);
    assert_eq!((locks.claims().exclusive_claims, locks.shares.load(SeqCst)), (0, 0));
}

/// A shared lock that is only tried blocks no others while it is not granted.
#[test]
fn a_shared_lock_that_is_tried_does_not_wait() {
    let locks = Arc::new(RangeLocks::default());
    let first = locks.try_lock_shared(range(0, 8)).unwrap();
    let second = locks.try_lock_shared(range(4, 8)).unwrap();
    let alone = locks.queue(range(0, 4), true);
    assert!(!alone.is_granted());
    assert!(locks.try_lock_shared(range(3, 1)).is_none(), "behind the one that waits");
    assert!(locks.try_lock_shared(range(8, 1)).is_some(), "elsewhere is free");
    drop(first);
    let alone = alone.granted().now_or_never().unwrap();
    assert!(locks.try_lock_shared(range(3, 1)).is_none());
    drop((alone, second));
    assert!(locks.claims().held.is_empty() && locks.claims().waiting == 0);
}

/// Fault: the memory of many claims was kept until the session ended, and charged to no owner: 14
/// KiB at each unit at which 120 ORDERED commands had waited.
#[test]
fn locks_of_a_session_keep_no_memory_of_claims() {
    let locks = Arc::new(RangeLocks::default());
    for claims in [1, 6, 126] {
        let mut queued: Vec<_> = (0..claims).map(|_| locks.queue(range(0, 1), true)).collect();
        queued.push(locks.at_head(range(0, 1)));
        assert!(locks.claims.lock().unwrap().is_some());
        drop(queued);
        assert!(locks.claims.lock().unwrap().is_none(), "after {claims} claims");
        // The thread keeps little memory for the next locks.
        let spare = SPARE_CLAIMS.take().map(|spare| spare.memory_bytes());
        assert_eq!(spare.is_some(), claims == 1, "{spare:?}");
        assert!(spare.is_none_or(|bytes| bytes < 4 << 10), "{spare:?}");
    }
}

/// Fault: as above, at each unit: 1.6 MB for ever once 8,192 claims had waited.
#[test]
fn locks_of_a_unit_keep_the_memory_of_a_few_claims() {
    let locks = Arc::new(RangeLocks::of_unit());
    let few_bytes = 12 << 10;
    let busy_claims = busy(&locks, |_| range(0, 1));
    let spread = busy_claims.len() as u64;
    let others: Vec<_> = (0..spread).map(|at| locks.queue(range(8 + at, 1), false)).collect();
    let much = locks.claims().memory_bytes();
    assert!(much > 1 << 20, "{much} bytes while many claims wait");
    drop((busy_claims, others));
    let kept = locks.claims().memory_bytes();
    assert!(kept < few_bytes, "{kept} bytes are kept of {much}");
    assert!(locks.claims().is_unused());
}

/// Goal: the memory of many claims is freed even if a few exist at all times, whichever of the many
/// these are, and a few claims that come and go allocate nothing.
#[test]
fn memory_of_many_claims_is_released() {
    let locks = Arc::new(RangeLocks::of_unit());
    let mut few: VecDeque<RangeQueued> = VecDeque::new();
    for round in 0..4 {
        let many = (0..1000).map(|at| locks.queue(range(8 + at, 1), at % 2 == 0));
        let mut many: Vec<_> = many.collect();
        few.push_back(many.swap_remove(250 * round));
        drop(many);
        // The old claims go, each after a new one has come.
        for at in 0..8 {
            few.push_back(locks.queue(range(2000 + at, 1), false));
            few.pop_front();
        }
    }
    assert_eq!(few.len(), 4);
    let kept = locks.claims().memory_bytes();
    assert!(kept < 24 << 10, "{kept} bytes for 4 claims");
    drop(few);
    let come_and_go = || {
        drop([0, 1, 2].map(|at| locks.queue(range(at, 1), at > 0)));
        locks.claims().memory_bytes()
    };
    let kept = come_and_go();
    assert_eq!(come_and_go(), kept);
}

/// Goal: locks without claims take little memory: each session has locks of its own at each unit
/// that it sees (`session::UNIT_BYTES`).
#[test]
fn unclaimed_locks_are_small() {
    assert!(size_of::<RangeLocks>() <= 128, "{} bytes", size_of::<RangeLocks>());
}

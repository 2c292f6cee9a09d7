//! Range locks: COMPARE AND WRITE and ORWRITE see no foreign write between their read and theirs.
//!
//! Writes share; the read-modify-write commands exclude every overlapping write. Grants are in
//! order of arrival among those that overlap, so nobody starves.
//!
//! Reads take no lock, but they wait for ranges that are secluded: there somebody changes blocks
//! for whom nobody waits any more.

use scsi::plan::LbaRange;
use std::collections::VecDeque;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// The locks of one unit.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    state: Mutex<State>,
    /// Everything is shared so many times [`SHARE`], apart from what `state` knows; and
    /// [`EXCLUSIVE`] while it knows of an exclusive claim, held or waiting. Changed under its lock
    /// but for the shares.
    shares: AtomicUsize,
    /// Held ranges that are secluded; while there is none, reads need not look.
    secluded: AtomicUsize,
    /// One of them was let go.
    shown: Notify,
}

/// In `shares`: nobody else may share without a place in the queue.
const EXCLUSIVE: usize = 1;
/// In `shares`: one that shares.
const SHARE: usize = 2;

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// Held or waiting; while there is none, sharers need not look at each other.
    exclusive_claims: usize,
    held: Vec<Claim>,
    waiting: VecDeque<(Claim, oneshot::Sender<()>)>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    id: u64,
    range: LbaRange,
    exclusive: bool,
    /// Reads wait for it as well.
    secluded: bool,
    /// A piece of a third-party copy.
    of_copy: bool,
}

/// A held range; dropping it lets the next in.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Arc<RangeLocks>,
    id: u64,
}

/// Everything is shared, at the cost of two additions: who wants any range for himself waits until
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Share<L: Deref<Target = RangeLocks>> {
    locks: L,
}

/// A place in the queue, taken when asked for; held once granted.
#[derive(Debug)]
pub(crate) struct RangeQueued {
    guard: RangeGuard,
    wait: Option<oneshot::Receiver<()>>,
}

/// What is done in the name of other units' tasks: who has shut somebody out waits until it is
/// over.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    locks: Arc<RangeLocks>,
}

impl Fence {
    const ALL: LbaRange = LbaRange { lba: 0, count: 1 };

    /// To be held while something is done.
    pub(crate) async fn share(&self) -> RangeGuard {
        self.locks.lock(Self::ALL, false).await
    }

    /// Waits until all that is being done now is over.
    pub(crate) async fn wait(&self) {
        drop(self.locks.lock(Self::ALL, true).await);
    }
}

impl Claim {
    fn new(id: u64, range: LbaRange, exclusive: bool) -> Self {
        Self { id, range, exclusive, secluded: false, of_copy: false }
    }

    fn excludes(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && overlap(self.range, other.range)
    }
}

fn overlap(a: LbaRange, b: LbaRange) -> bool {
    let (a_end, b_end) = (a.lba.saturating_add(a.count), b.lba.saturating_add(b.count));
    a.count > 0 && b.count > 0 && a.lba < b_end && b.lba < a_end
}

impl RangeLocks {
    /// Holds `range`, shared with other writers, or alone.
    pub(crate) async fn lock(self: &Arc<Self>, range: LbaRange, exclusive: bool) -> RangeGuard {
        self.queue(range, exclusive).granted().await
    }

    /// Takes a place in the queue now; it may be waited for later.
    pub(crate) fn queue(self: &Arc<Self>, range: LbaRange, exclusive: bool) -> RangeQueued {
        let mut state = self.state();
        let claim = Claim::new(state.next_id, range, exclusive);
        state.next_id += 1;
        if exclusive {
            self.claim_exclusively(&mut state, 1);
        }
        let blocked = state.exclusive_claims > 0
            && (exclusive && self.is_shared()
                || state.held.iter().any(|held| held.excludes(&claim))
                || state.waiting.iter().any(|(waiting, _)| waiting.excludes(&claim)));
        let wait = if blocked {
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back((claim, grant));
            Some(granted)
        } else {
            state.held.push(claim);
            None
        };
        RangeQueued { guard: RangeGuard { locks: Arc::clone(self), id: claim.id }, wait }
    }

    /// Holds `range` at once, whoever else does: who comes later or waits already waits for it.
    pub(crate) fn at_head(self: &Arc<Self>, range: LbaRange) -> RangeQueued {
        let mut state = self.state();
        let claim = Claim::new(state.next_id, range, true);
        state.next_id += 1;
        self.claim_exclusively(&mut state, 1);
        state.held.push(claim);
        RangeQueued { guard: RangeGuard { locks: Arc::clone(self), id: claim.id }, wait: None }
    }

    /// Shares everything with all others who share, unless there is an exclusive claim: then a
    /// place in the queue has to be taken.
    pub(crate) fn try_share<L: Deref<Target = Self>>(locks: L) -> Option<Share<L>> {
        if locks.shares.load(SeqCst) & EXCLUSIVE != 0 {
            return None;
        }
        let before = locks.shares.fetch_add(SHARE, SeqCst);
        // Dropped, it wakes whoever took it for one that shares.
        let share = Share { locks };
        (before & EXCLUSIVE == 0).then_some(share)
    }

    fn is_shared(&self) -> bool {
        self.shares.load(SeqCst) >= SHARE
    }

    /// From the first such claim on nobody shares without a place in the queue.
    fn claim_exclusively(&self, state: &mut State, claims: usize) {
        state.exclusive_claims += claims;
        if state.exclusive_claims > 0 {
            self.shares.fetch_or(EXCLUSIVE, SeqCst);
        }
    }

    /// Lets those in whom nobody keeps out any more.
    fn grant_next(&self, state: &mut State) {
        if !state.waiting.is_empty() {
            state.grant_next(self.is_shared());
        }
    }

    /// No range at all is secluded.
    pub(crate) fn are_shown(&self) -> bool {
        self.secluded.load(SeqCst) == 0
    }

    /// Waits until no block of `range` is secluded.
    pub(crate) async fn shown(&self, range: LbaRange) {
        while !self.are_shown() {
            let mut shown = pin!(self.shown.notified());
            shown.as_mut().enable();
            let hides = |held: &Claim| held.secluded && overlap(held.range, range);
            if !self.state().held.iter().any(hides) {
                return;
            }
            shown.await;
        }
    }

    /// Secludes the pieces of copies that are being written now.
    pub(crate) fn seclude_copies(&self) {
        self.seclude(|claim| claim.of_copy);
    }

    fn seclude(&self, which: impl Fn(&Claim) -> bool) {
        let mut state = self.state();
        let mut claims = 0;
        for claim in state.held.iter_mut().filter(|claim| which(claim) && !claim.secluded) {
            claims += usize::from(!claim.exclusive);
            (claim.secluded, claim.exclusive) = (true, true);
            self.secluded.fetch_add(1, SeqCst);
        }
        self.claim_exclusively(&mut state, claims);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RangeGuard {
    /// Whoever comes from now on, to read as well, waits until this is let go. Those who share the
    /// range already go on.
    pub(crate) fn seclude(&self) {
        self.locks.seclude(|claim| claim.id == self.id);
    }

    /// It is a piece of a copy that is locked.
    pub(crate) fn of_copy(self) -> Self {
        let mut state = self.locks.state();
        if let Some(claim) = state.held.iter_mut().find(|claim| claim.id == self.id) {
            claim.of_copy = true;
        }
        drop(state);
        self
    }
}

impl<L: Deref<Target = RangeLocks>> Share<L> {
    /// Of which everything is shared.
    pub(crate) fn locks(&self) -> &L {
        &self.locks
    }
}

impl RangeQueued {
    /// Whose range is waited for.
    pub(crate) fn locks(&self) -> &Arc<RangeLocks> {
        &self.guard.locks
    }

    /// It is held: nobody has to be waited for.
    pub(crate) fn is_granted(&self) -> bool {
        self.wait.is_none()
    }

    /// Waits until the range is held.
    pub(crate) async fn granted(self) -> RangeGuard {
        if let Some(granted) = self.wait {
            let _ = granted.await; // the sender is dropped by its grant only
        }
        self.guard
    }
}

impl State {
    fn remove(&mut self, id: u64) -> Option<Claim> {
        let held = self.held.iter().position(|held| held.id == id);
        let claim = match held {
            Some(at) => Some(self.held.swap_remove(at)),
            None => {
                let at = self.waiting.iter().position(|(waiting, _)| waiting.id == id);
                at.and_then(|at| self.waiting.remove(at)).map(|(claim, _)| claim)
            }
        };
        self.exclusive_claims -= usize::from(claim.is_some_and(|claim| claim.exclusive));
        claim
    }

    /// `shared`: by somebody without a place in the queue.
    fn grant_next(&mut self, shared: bool) {
        let mut still_waiting: VecDeque<(Claim, _)> = VecDeque::with_capacity(self.waiting.len());
        while let Some((claim, grant)) = self.waiting.pop_front() {
            let blocked = (claim.exclusive && shared)
                || self.held.iter().any(|held| held.excludes(&claim))
                || still_waiting.iter().any(|(earlier, _)| earlier.excludes(&claim));
            if blocked {
                still_waiting.push_back((claim, grant));
                continue;
            }
            // A waiter that is gone removes its claim itself when its guard is dropped.
            self.held.push(claim);
            let _ = grant.send(());
        }
        self.waiting = still_waiting;
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.locks.state();
        let claim = state.remove(self.id);
        if state.exclusive_claims == 0 && claim.is_some_and(|claim| claim.exclusive) {
            self.locks.shares.fetch_and(!EXCLUSIVE, SeqCst);
        }
        self.locks.grant_next(&mut state);
        drop(state);
        if claim.is_some_and(|claim| claim.secluded) {
            self.locks.secluded.fetch_sub(1, SeqCst);
            self.locks.shown.notify_waiters();
        }
    }
}

impl<L: Deref<Target = RangeLocks>> Drop for Share<L> {
    fn drop(&mut self) {
        if self.locks.shares.fetch_sub(SHARE, SeqCst) == SHARE | EXCLUSIVE {
            self.locks.grant_next(&mut self.locks.state());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

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
        assert!(locks.state().held.is_empty() && locks.state().waiting.is_empty());
    }

    /// SAM-5 §8: HEAD OF QUEUE waits for nobody, not even for one that is exclusive, and nobody
    /// who has not begun goes before it.
    #[test]
    fn the_head_waits_for_nobody_and_all_others_for_it() {
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
        assert!(locks.state().held.is_empty() && locks.state().waiting.is_empty());
        assert_eq!(locks.state().exclusive_claims, 0);
    }

    /// Of a secluded range nobody sees or changes anything who comes later; those who shared it
    /// before go on, and it leaves nothing behind.
    #[test]
    fn a_secluded_range_is_waited_for_by_all() {
        let locks = Arc::new(RangeLocks::default());
        let left = locks.lock(range(0, 8), false).now_or_never().unwrap();
        let beside = locks.lock(range(4, 8), false).now_or_never().unwrap();
        assert!(locks.shown(range(0, 8)).now_or_never().is_some(), "reads take no lock");
        left.seclude();
        left.seclude();
        drop(beside);
        let mut read = Box::pin(locks.shown(range(7, 100)));
        let mut write = Box::pin(locks.lock(range(7, 1), false));
        assert!((&mut read).now_or_never().is_none());
        assert!((&mut write).now_or_never().is_none());
        assert!(locks.shown(range(8, 1)).now_or_never().is_some(), "elsewhere is free");
        assert!(locks.lock(range(8, 1), false).now_or_never().is_some());
        drop(left);
        assert!(read.now_or_never().is_some());
        drop(write.now_or_never().unwrap());
        assert_eq!((locks.secluded.load(SeqCst), locks.state().exclusive_claims), (0, 0));
        assert!(locks.state().held.is_empty() && locks.state().waiting.is_empty());
    }

    /// Those who share everything without a place in the queue keep the exclusive out, wherever it
    /// is, and it keeps such out who come later, from when it waits to when it is gone.
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
        assert!(RangeLocks::try_share(&*locks).is_none(), "the other is still there");
        drop(other);
        let share = RangeLocks::try_share(&*locks).unwrap();
        let head = locks.at_head(range(0, 1)).granted().now_or_never().unwrap();
        assert!(RangeLocks::try_share(&*locks).is_none(), "behind the head");
        drop((share, head));
        assert_eq!(locks.shares.load(SeqCst), 0);
    }

    /// A waiter that gives up lets others share again, and so does a secluded range let go.
    #[test]
    fn sharing_goes_on_after_whoever_kept_it_from_others() {
        let locks = Arc::new(RangeLocks::default());
        let share = RangeLocks::try_share(&*locks).unwrap();
        let mut waiter = Box::pin(locks.lock(range(0, 1), true));
        assert!((&mut waiter).now_or_never().is_none());
        drop(waiter);
        drop(RangeLocks::try_share(&*locks).unwrap());
        drop(share);
        let left = locks.lock(range(0, 1), false).now_or_never().unwrap();
        left.seclude();
        assert!(RangeLocks::try_share(&*locks).is_none());
        drop(left);
        assert!(RangeLocks::try_share(&*locks).is_some());
        assert_eq!(locks.shares.load(SeqCst), 0);
    }

    /// Threads that share and threads that exclude are never inside together, and none is
    /// forgotten.
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
        assert!(locks.state().held.is_empty() && locks.state().waiting.is_empty());
    }

    /// Pieces of copies are secluded without those who write them, nothing else is.
    #[test]
    fn pieces_of_copies_are_secluded() {
        let locks = Arc::new(RangeLocks::default());
        let piece = locks.lock(range(0, 8), false).now_or_never().unwrap().of_copy();
        let _other = locks.lock(range(8, 8), false).now_or_never().unwrap();
        locks.seclude_copies();
        assert!(locks.shown(range(0, 1)).now_or_never().is_none());
        assert!(locks.shown(range(8, 8)).now_or_never().is_some());
        drop(piece);
        assert!(locks.shown(range(0, 16)).now_or_never().is_some());
    }

    /// A waiter that is dropped before or after its grant leaves nothing behind.
    #[test]
    fn dropped_waiters_leave_nothing() {
        let locks = Arc::new(RangeLocks::default());
        let held = locks.lock(range(0, 1), true).now_or_never().unwrap();
        let mut waiter = Box::pin(locks.lock(range(0, 1), true));
        assert!((&mut waiter).now_or_never().is_none());
        drop(waiter);
        let mut granted = Box::pin(locks.lock(range(0, 1), true));
        assert!((&mut granted).now_or_never().is_none());
        drop(held);
        drop(granted);
        assert!(locks.state().held.is_empty() && locks.state().waiting.is_empty());
    }
}

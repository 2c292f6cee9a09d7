//! Group commit: many who wait for durability share one sync.

use super::workers::{FirstJobs, Workers};
use crate::{Durations, PoisonWatcher, SyncCounts};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A sync waits for those it expects for at most this part of the time the last one took …
const GATHER_PART: u32 = 3;
/// … and for at most so long.
const GATHER_MAX: Duration = Duration::from_millis(2);

type Sync = Box<dyn Fn() -> io::Result<()> + Send + std::marker::Sync>;

/// Makes what was written durable. A sync that *begins* after a write returned covers it, so all
/// who come while one sync runs are served together by the next. That one begins once all are
/// there who were there before, or have kept it waiting for a part of a sync's time: who always has
/// so many writes in flight would else fall into two halves that wait for each other's syncs.
///
/// After a sync has failed, nothing is durable any more: the kernel may have dropped the pages it
/// could not write and report success next time. So the failure is remembered until an operator
/// has it forgotten; and since it is reported once, to whichever sync comes first, all syncs of a
/// disk go one after the other, those of a recovery too.
pub(crate) struct GroupCommit {
    sync: Sync,
    state: Mutex<State>,
    gathered: Condvar,
    /// How long a sync waits for those it expects, after one that took so long.
    patience: fn(Duration) -> Duration,
    /// Held by every sync until it is known what it says of the disk.
    order: Mutex<()>,
    poisoned: AtomicBool,
    watcher: Mutex<Option<Arc<dyn PoisonWatcher>>>,
    /// How often the disk was poisoned.
    era: AtomicU64,
    durations: Durations,
    requests: AtomicU64,
    failures: AtomicU64,
}

/// A span between two failed syncs. What was written in one is made durable in that one or lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Era(u64);

/// Who waits for one sync.
struct Group {
    waiters: Vec<oneshot::Sender<Result<(), SyncError>>>,
    unasked: Option<SyncCallback>,
    era: Era,
}

/// Called after a sync that nobody waits for.
type SyncCallback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiters: Vec<oneshot::Sender<Result<(), SyncError>>>,
    /// The next sync is wanted also if nobody waits for it.
    unasked: Option<SyncCallback>,
    /// A sync runs, and will look for waiters when it is done.
    running: bool,
    /// The next sync waits for so many.
    expected: usize,
}

/// Why something is not durable.
#[derive(Clone, Debug)]
pub(crate) enum SyncError {
    /// This very sync failed.
    Failed(Arc<io::Error>),
    /// One failed before.
    Poisoned,
}

impl GroupCommit {
    pub(crate) fn new(
        sync: impl Fn() -> io::Result<()> + Send + std::marker::Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            sync: Box::new(sync),
            state: Mutex::default(),
            gathered: Condvar::new(),
            patience: |took| (took / GATHER_PART).min(GATHER_MAX),
            order: Mutex::default(),
            poisoned: AtomicBool::new(false),
            watcher: Mutex::default(),
            era: AtomicU64::new(0),
            durations: Durations::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    pub(crate) fn counts(&self) -> SyncCounts {
        SyncCounts {
            durations: self.durations.read(),
            requests: self.requests.load(Relaxed),
            failures: self.failures.load(Relaxed),
            poisoned: self.is_poisoned(),
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(SeqCst)
    }

    /// That of this moment: to be asked for before anything is written.
    pub(crate) fn era(&self) -> Era {
        Era(self.era.load(SeqCst))
    }

    /// Everything written in `era` before this call is durable after.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        era: Era,
        workers: &Workers,
    ) -> Result<(), SyncError> {
        let (done, result) = oneshot::channel();
        let begin = {
            let mut state = self.state();
            if self.is_poisoned() || self.era() != era {
                return Err(SyncError::Poisoned);
            }
            if state.waiters.len() == state.waiters.capacity() {
                // However long a sync takes, waiters that are gone do not accumulate.
                state.waiters.retain(|waiter| !waiter.is_closed());
            }
            state.waiters.push(done);
            if state.waiters.len() == state.expected {
                self.gathered.notify_one();
            }
            !std::mem::replace(&mut state.running, true)
        };
        if begin {
            let this = Arc::clone(self);
            // Never by way of the queue's places: this future may be dropped while it waits for
            // one, and nobody else would begin.
            workers.run_first(move || this.serve());
        }
        result.await.unwrap_or(Err(SyncError::Poisoned))
    }

    /// Has the disk synced though nobody asked. After a failed sync it is not synced. Calls `ended`
    /// in any case, from any thread.
    pub(crate) fn sync_unasked(self: &Arc<Self>, jobs: &FirstJobs, ended: SyncCallback) {
        let (before, begin) = {
            let mut state = self.state();
            let before = state.unasked.replace(ended);
            (before, !std::mem::replace(&mut state.running, true))
        };
        if let Some(ended) = before {
            ended();
        }
        if begin {
            let this = Arc::clone(self);
            jobs.run_first(move || this.serve());
        }
    }

    /// Syncs once more and, when that goes well and `between` too, forgets that a sync has failed;
    /// blocks. Where none has, it is a sync as any other.
    pub(crate) fn recover(&self, between: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _order = self.order();
        self.sync_in_order()?;
        if self.is_poisoned() {
            between()?;
            if let Some(watcher) = self.watcher() {
                watcher.recovering()?;
            }
            self.poisoned.store(false, SeqCst);
        }
        Ok(())
    }

    /// Tells of poison from now on, and of that which is there; blocks.
    pub(crate) fn watch(&self, watcher: Arc<dyn PoisonWatcher>) {
        let _order = self.order();
        let told = Arc::clone(&watcher);
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
        if self.is_poisoned() {
            told.poisoned();
        }
    }

    /// Nothing is durable any more, as after a failed sync; blocks.
    pub(crate) fn start_poisoned(&self) {
        let _order = self.order();
        self.poison();
    }

    /// How many wait for the next sync.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().waiters.len()
    }

    /// Syncs until nobody waits.
    fn serve(&self) {
        let mut patience = Duration::ZERO;
        loop {
            let Some(group) = self.gather(patience) else { return };
            let begun = Instant::now();
            let result = self.sync_once(&group);
            patience = (self.patience)(begun.elapsed());
            {
                let mut state = self.state();
                let waiters = group.waiters.iter().chain(&state.waiters);
                state.expected = waiters.filter(|waiter| !waiter.is_closed()).count();
            }
            for waiter in group.waiters {
                // Some may be gone.
                let _ = waiter.send(result.clone());
            }
            if let Some(ended) = group.unasked {
                ended();
            }
        }
    }

    /// Those whom the next sync serves; `None`: nobody waits.
    fn gather(&self, patience: Duration) -> Option<Group> {
        let mut state = self.state();
        if state.expected > 1 && !patience.is_zero() {
            let missing = |state: &mut State| state.waiters.len() < state.expected;
            let waited = self.gathered.wait_timeout_while(state, patience, missing);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.expected = 0;
        if state.waiters.is_empty() && state.unasked.is_none() {
            state.running = false;
            return None;
        }
        let (waiters, unasked) = (std::mem::take(&mut state.waiters), state.unasked.take());
        Some(Group { waiters, unasked, era: self.era() })
    }

    fn sync_once(&self, group: &Group) -> Result<(), SyncError> {
        let _order = self.order();
        if self.is_poisoned() || self.era() != group.era {
            return Err(SyncError::Poisoned);
        }
        self.requests.fetch_add(group.waiters.len() as u64, Relaxed);
        self.sync_in_order().map_err(|error| SyncError::Failed(Arc::new(error)))
    }

    /// A sync; the order is held.
    fn sync_in_order(&self) -> io::Result<()> {
        let begun = Instant::now();
        let result = (self.sync)();
        self.durations.count(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if result.is_err() {
            self.failures.fetch_add(1, Relaxed);
            self.poison();
        }
        result
    }

    /// Nothing is durable any more. Who waits is told now: after a recovery a sync would go well
    /// that has nothing of theirs. The order is held, so that no recovery comes between.
    fn poison(&self) {
        let mut state = self.state();
        self.era.fetch_add(1, SeqCst);
        self.poisoned.store(true, SeqCst);
        for waiter in state.waiters.drain(..) {
            let _ = waiter.send(Err(SyncError::Poisoned)); // it may be gone
        }
        drop(state);
        if let Some(watcher) = self.watcher() {
            watcher.poisoned();
        }
    }

    fn watcher(&self) -> Option<Arc<dyn PoisonWatcher>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for GroupCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCommit").field("poisoned", &self.poisoned).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::test_workers;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{OnceLock, Weak};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Threads that write and commit over and over share syncs, and each commit is covered by a
    /// sync that began after it was asked for: what a sync saw at its beginning is what counts.
    /// Method: a sync takes until every thread that is not through waits, for it or for the next:
    /// of two in a row one is for each thread.
    #[test]
    fn shared() {
        const THREADS: usize = 8;
        const ROUNDS: usize = 20;
        let [written, durable, syncs, ended] = [(); 4].map(|()| Arc::new(AtomicUsize::new(0)));
        let (w, d, s, e) = (written.clone(), durable.clone(), syncs.clone(), ended.clone());
        let this: Arc<OnceLock<Weak<GroupCommit>>> = Arc::default();
        let (late, served) = (Arc::clone(&this), AtomicU64::new(0));
        let group = GroupCommit::new(move || {
            let seen = w.load(SeqCst);
            let group = late.get().and_then(Weak::upgrade).ok_or(io::ErrorKind::NotFound)?;
            let requests = group.counts().requests;
            let mine = (requests - served.swap(requests, SeqCst)) as usize;
            let begun = Instant::now();
            while group.waiting() + mine < THREADS - e.load(SeqCst) {
                if begun.elapsed() > Duration::from_secs(60) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            d.fetch_max(seen, SeqCst);
            s.fetch_add(1, SeqCst);
            Ok(())
        });
        this.set(Arc::downgrade(&group)).unwrap();
        let workers = test_workers(1, 2);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (group, workers, written, durable) = (&group, &workers, &written, &durable);
                let ended = &ended;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let pause = (thread * 7 + round * 3) % 11 * 300;
                        std::thread::sleep(Duration::from_micros(pause as u64));
                        let mine = written.fetch_add(1, SeqCst) + 1;
                        block_on(group.commit(group.era(), workers)).unwrap();
                        assert!(durable.load(SeqCst) >= mine, "not covered by its sync");
                    }
                    ended.fetch_add(1, SeqCst);
                });
            }
        });
        let syncs = syncs.load(SeqCst);
        assert!(syncs <= 2 * ROUNDS, "{syncs} syncs");
        let counts = group.counts();
        assert_eq!(counts.durations.count(), syncs as u64);
        assert_eq!((counts.requests, counts.failures), ((THREADS * ROUNDS) as u64, 0));
        assert!(group.state().waiters.is_empty());
    }

    /// Goal: writers that come again and again are served together, not in two halves. Method: one
    /// sync serves the first alone while the others come; the next waits until the first is back.
    #[test]
    fn halves_become_a_whole() {
        const WRITERS: usize = 4;
        let (begun, syncs) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let mut group = GroupCommit::new(move || {
            begun.send(()).map_err(io::Error::other)?;
            may_go.lock().unwrap().recv().map_err(io::Error::other)
        });
        Arc::get_mut(&mut group).unwrap().patience = |_| Duration::from_secs(20);
        let workers = test_workers(1, 2);
        let commit = || block_on(group.commit(group.era(), &workers)).unwrap();
        let waiting = || group.state().waiters.len();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                commit();
                // The others wait for a sync by now, and it for this one.
                std::thread::sleep(Duration::from_millis(50));
                commit();
            });
            syncs.recv().unwrap();
            for _ in 1..WRITERS {
                scope.spawn(commit);
            }
            while waiting() < WRITERS - 1 {
                std::thread::yield_now();
            }
            go.send(()).unwrap();
            syncs.recv().unwrap();
            assert_eq!(group.counts().requests, 1 + WRITERS as u64, "all in the second");
            go.send(()).unwrap();
        });
        assert_eq!(group.counts().durations.count(), 2);
        // Nobody comes again.
        group.state().expected = 0;
        group.gathered.notify_all();
    }

    /// The failure is told to those it concerns, and to all later ones as poison; the sync is
    /// never tried again.
    #[test]
    fn poison() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let group = GroupCommit::new(move || {
            count.fetch_add(1, SeqCst);
            Err(io::Error::from_raw_os_error(5))
        });
        let workers = test_workers(1, 2);
        let failed = block_on(group.commit(group.era(), &workers));
        assert!(matches!(failed, Err(SyncError::Failed(e)) if e.raw_os_error() == Some(5)));
        for _ in 0..3 {
            let later = block_on(group.commit(group.era(), &workers));
            assert!(matches!(later, Err(SyncError::Poisoned)));
        }
        assert_eq!(calls.load(SeqCst), 1);
        let counts = group.counts();
        assert!(counts.poisoned);
        assert_eq!((counts.durations.count(), counts.requests, counts.failures), (1, 1, 1));
    }

    /// Goal: what was written before a sync failed is not acknowledged after a recovery, also if it
    /// asks only then; while one is recovered nobody's sync comes between.
    #[test]
    fn what_is_lost_stays_lost() {
        let broken = Arc::new(AtomicBool::new(true));
        let fails = Arc::clone(&broken);
        let group = GroupCommit::new(move || match fails.load(SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        });
        let workers = test_workers(1, 2);
        let before = group.era();
        block_on(group.commit(before, &workers)).unwrap_err();
        broken.store(false, SeqCst);
        group.recover(|| Err(io::Error::other("not yet"))).unwrap_err();
        assert!(group.is_poisoned());
        let between = || {
            assert!(block_on(group.commit(group.era(), &workers)).is_err());
            Ok(())
        };
        group.recover(between).unwrap();
        assert!(matches!(block_on(group.commit(before, &workers)), Err(SyncError::Poisoned)));
        block_on(group.commit(group.era(), &workers)).unwrap();
    }

    /// A waiter that gives up does not keep the others waiting.
    #[test]
    fn abandoned() {
        let group = GroupCommit::new(|| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        });
        let workers = test_workers(1, 0);
        block_on(async {
            let first = group.commit(group.era(), &workers);
            tokio::select! { biased; _ = first => {}, () = std::future::ready(()) => {} }
            group.commit(group.era(), &workers).await.unwrap();
        });
    }
}

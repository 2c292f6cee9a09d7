//! Group commit: several requests for durability share one sync.

use super::workers::{PriorityJobs, Workers};
use crate::{Durations, PoisonWatcher, SyncCounts};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Divisor of the last sync's duration: the maximum time for which the next sync waits for expected
/// requests.
const GATHER_DIVISOR: u32 = 3;
/// Upper limit of that time.
const GATHER_MAX: Duration = Duration::from_millis(2);

type Sync = Box<dyn Fn() -> io::Result<()> + Send + std::marker::Sync>;

/// Makes written data durable. A sync that *begins* after a write returned covers the write, so all
/// requests that arrive while one sync runs are served together by the next sync. That sync begins
/// once as many requests wait as the previous sync served or left waiting, or after a part of a
/// sync's time. Without this wait, a client with a constant number of writes in flight would fall
/// into two halves that wait for each other's syncs.
///
/// After a failed sync nothing is durable: the kernel may have dropped the pages that it could not
/// write, and may report success the next time. The failure is therefore remembered until an
/// operator recovers the disk. The kernel reports the failure once, to the first sync that comes,
/// so all syncs of a disk run one after the other, including those of a recovery.
pub(crate) struct GroupCommit {
    sync: Sync,
    state: Mutex<State>,
    gathered: Condvar,
    /// Computes how long a sync waits for expected requests, from the time of the last sync.
    gather_time: fn(Duration) -> Duration,
    /// Serializes syncs: each sync holds this lock until its result has been evaluated.
    sync_lock: Mutex<()>,
    poisoned: AtomicBool,
    watcher: Mutex<Option<Arc<dyn PoisonWatcher>>>,
    /// Number of times that the disk was poisoned.
    period: AtomicU64,
    durations: Durations,
    requests: AtomicU64,
    failures: AtomicU64,
}

/// The time between two failed syncs. Data written in a period is made durable in that period or
/// lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SyncPeriod(u64);

/// The requests that one sync serves.
struct Group {
    waiters: Vec<oneshot::Sender<Result<(), SyncError>>>,
    unrequested: Option<SyncCallback>,
    period: SyncPeriod,
}

/// Called after a sync that no request waits for.
type SyncCallback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiters: Vec<oneshot::Sender<Result<(), SyncError>>>,
    /// Set when the next sync is required even if no request waits for it.
    unrequested: Option<SyncCallback>,
    /// True while a sync runs; at its end it begins the next one if requests wait.
    running: bool,
    /// Number of requests that the next sync waits for.
    expected: usize,
}

/// The reason why data is not durable.
#[derive(Clone, Debug)]
pub(crate) enum SyncError {
    /// The sync of this request failed.
    Failed(Arc<io::Error>),
    /// An earlier sync failed.
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
            gather_time: |took| (took / GATHER_DIVISOR).min(GATHER_MAX),
            sync_lock: Mutex::default(),
            poisoned: AtomicBool::new(false),
            watcher: Mutex::default(),
            period: AtomicU64::new(0),
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

    /// Returns the current period; callers read it before they write.
    pub(crate) fn period(&self) -> SyncPeriod {
        SyncPeriod(self.period.load(SeqCst))
    }

    /// Makes durable all data that was written in `period` before this call.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        period: SyncPeriod,
        workers: &Workers,
    ) -> Result<(), SyncError> {
        let (done, result) = oneshot::channel();
        let begin = {
            let mut state = self.state();
            if self.is_poisoned() || self.period() != period {
                return Err(SyncError::Poisoned);
            }
            if state.waiters.len() == state.waiters.capacity() {
                // However long a sync takes, waiters that were dropped do not accumulate.
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
            // The job bypasses the limits of the queue: this future may be dropped while its job
            // waits, and then no other request would begin a sync.
            workers.run_prioritized(move || this.serve());
        }
        result.await.unwrap_or(Err(SyncError::Poisoned))
    }

    /// Starts a sync that no request waits for, unless an earlier sync has failed. Calls `ended` in
    /// any case, from any thread.
    pub(crate) fn sync_unrequested(self: &Arc<Self>, jobs: &PriorityJobs, ended: SyncCallback) {
        let (before, begin) = {
            let mut state = self.state();
            let before = state.unrequested.replace(ended);
            (before, !std::mem::replace(&mut state.running, true))
        };
        if let Some(ended) = before {
            ended();
        }
        if begin {
            let this = Arc::clone(self);
            jobs.run_prioritized(move || this.serve());
        }
    }

    /// Syncs once more, calls `before_clearing` and clears the poison if both succeed; blocks. On a
    /// disk that is not poisoned this is an ordinary sync.
    pub(crate) fn recover(
        &self,
        before_clearing: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let _sync_lock = self.sync_lock();
        self.sync_locked()?;
        if self.is_poisoned() {
            before_clearing()?;
            if let Some(watcher) = self.watcher() {
                watcher.recovering()?;
            }
            self.poisoned.store(false, SeqCst);
        }
        Ok(())
    }

    /// Registers a watcher of poison and notifies it of existing poison; blocks.
    pub(crate) fn watch(&self, watcher: Arc<dyn PoisonWatcher>) {
        let _sync_lock = self.sync_lock();
        let notified = Arc::clone(&watcher);
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
        if self.is_poisoned() {
            notified.poisoned();
        }
    }

    /// Poisons the disk, as after a failed sync; blocks.
    pub(crate) fn start_poisoned(&self) {
        let _sync_lock = self.sync_lock();
        self.poison();
    }

    /// Returns the number of requests that wait for the next sync.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().waiters.len()
    }

    /// Syncs until no request waits.
    fn serve(&self) {
        let mut gather_time = Duration::ZERO;
        loop {
            let Some(group) = self.gather(gather_time) else { return };
            let begun = Instant::now();
            let result = self.sync_once(&group);
            gather_time = (self.gather_time)(begun.elapsed());
            {
                let mut state = self.state();
                let waiters = group.waiters.iter().chain(&state.waiters);
                state.expected = waiters.filter(|waiter| !waiter.is_closed()).count();
            }
            for waiter in group.waiters {
                // Some waiters may have been dropped.
                let _ = waiter.send(result.clone());
            }
            if let Some(ended) = group.unrequested {
                ended();
            }
        }
    }

    /// Collects the requests that the next sync serves; `None` if there are none.
    fn gather(&self, gather_time: Duration) -> Option<Group> {
        let mut state = self.state();
        if state.expected > 1 && !gather_time.is_zero() {
            let missing = |state: &mut State| state.waiters.len() < state.expected;
            let waited = self.gathered.wait_timeout_while(state, gather_time, missing);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.expected = 0;
        if state.waiters.is_empty() && state.unrequested.is_none() {
            state.running = false;
            return None;
        }
        let (waiters, unrequested) = (std::mem::take(&mut state.waiters), state.unrequested.take());
        Some(Group { waiters, unrequested, period: self.period() })
    }

    fn sync_once(&self, group: &Group) -> Result<(), SyncError> {
        let _sync_lock = self.sync_lock();
        if self.is_poisoned() || self.period() != group.period {
            return Err(SyncError::Poisoned);
        }
        self.requests.fetch_add(group.waiters.len() as u64, Relaxed);
        self.sync_locked().map_err(|error| SyncError::Failed(Arc::new(error)))
    }

    /// Syncs; the caller holds `sync_lock`.
    fn sync_locked(&self) -> io::Result<()> {
        let begun = Instant::now();
        let result = (self.sync)();
        self.durations.count(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if result.is_err() {
            self.failures.fetch_add(1, Relaxed);
            self.poison();
        }
        result
    }

    /// Poisons the disk. Waiting requests fail now: after a recovery a sync could succeed without
    /// their data. The caller holds `sync_lock`, so no recovery runs meanwhile.
    fn poison(&self) {
        let mut state = self.state();
        self.period.fetch_add(1, SeqCst);
        self.poisoned.store(true, SeqCst);
        for waiter in state.waiters.drain(..) {
            let _ = waiter.send(Err(SyncError::Poisoned)); // it may have been dropped
        }
        drop(state);
        if let Some(watcher) = self.watcher() {
            watcher.poisoned();
        }
    }

    fn watcher(&self) -> Option<Arc<dyn PoisonWatcher>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sync_lock(&self) -> MutexGuard<'_, ()> {
        self.sync_lock.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Goal: threads that write and commit repeatedly share syncs, and each commit is covered by a
    /// sync that began after its request; the data that a sync saw at its beginning counts. Method:
    /// a sync takes until every unfinished thread waits, for it or for the next one: of two syncs
    /// in a row, one is for each thread.
    #[test]
    fn concurrent_commits_share_syncs() {
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
                        block_on(group.commit(group.period(), workers)).unwrap();
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

    /// Goal: writers that return again and again are served together, not in two halves. Method:
    /// one sync serves the first writer alone while the others arrive; the next sync waits until
    /// the first writer is back.
    #[test]
    fn returning_writers_share_one_sync() {
        const WRITERS: usize = 4;
        let (begun, syncs) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let mut group = GroupCommit::new(move || {
            begun.send(()).map_err(io::Error::other)?;
            may_go.lock().unwrap().recv().map_err(io::Error::other)
        });
        Arc::get_mut(&mut group).unwrap().gather_time = |_| Duration::from_secs(20);
        let workers = test_workers(1, 2);
        let commit = || block_on(group.commit(group.period(), &workers)).unwrap();
        let waiting = || group.state().waiters.len();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                commit();
                // By now the other writers wait for a sync, and that sync waits for this writer.
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
        // No writer returns again.
        group.state().expected = 0;
        group.gathered.notify_all();
    }

    /// Goal: a failed sync is reported to the requests that it served, and to all later ones as
    /// poison; the sync is never retried.
    #[test]
    fn a_failed_sync_poisons_later_requests() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let group = GroupCommit::new(move || {
            count.fetch_add(1, SeqCst);
            Err(io::Error::from_raw_os_error(5))
        });
        let workers = test_workers(1, 2);
        let failed = block_on(group.commit(group.period(), &workers));
        assert!(matches!(failed, Err(SyncError::Failed(e)) if e.raw_os_error() == Some(5)));
        for _ in 0..3 {
            let later = block_on(group.commit(group.period(), &workers));
            assert!(matches!(later, Err(SyncError::Poisoned)));
        }
        assert_eq!(calls.load(SeqCst), 1);
        let counts = group.counts();
        assert!(counts.poisoned);
        assert_eq!((counts.durations.count(), counts.requests, counts.failures), (1, 1, 1));
    }

    /// Goal: data written before a sync failed is not acknowledged after a recovery, even if its
    /// commit is requested only then; during a recovery no sync of another request comes in
    /// between.
    #[test]
    fn lost_writes_fail_after_a_recovery() {
        let broken = Arc::new(AtomicBool::new(true));
        let fails = Arc::clone(&broken);
        let group = GroupCommit::new(move || match fails.load(SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        });
        let workers = test_workers(1, 2);
        let before = group.period();
        block_on(group.commit(before, &workers)).unwrap_err();
        broken.store(false, SeqCst);
        group.recover(|| Err(io::Error::other("not yet"))).unwrap_err();
        assert!(group.is_poisoned());
        let before_clearing = || {
            assert!(block_on(group.commit(group.period(), &workers)).is_err());
            Ok(())
        };
        group.recover(before_clearing).unwrap();
        assert!(matches!(block_on(group.commit(before, &workers)), Err(SyncError::Poisoned)));
        block_on(group.commit(group.period(), &workers)).unwrap();
    }

    /// Goal: a waiter that is dropped does not keep other waiters waiting.
    #[test]
    fn a_dropped_waiter_does_not_block_others() {
        let group = GroupCommit::new(|| {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        });
        let workers = test_workers(1, 0);
        block_on(async {
            let first = group.commit(group.period(), &workers);
            tokio::select! { biased; _ = first => {}, () = std::future::ready(()) => {} }
            group.commit(group.period(), &workers).await.unwrap();
        });
    }
}

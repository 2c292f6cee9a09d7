//! A bounded pool of threads for blocking system calls.

mod budget;
mod computing;
mod queue;
mod queued_job;
mod slots;

use crate::IoContext;
use queue::{JobOwner, JobQueue, RunningJob, continued};
use queued_job::QueuedJob;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

pub(super) use budget::ThreadBudget;
pub(super) use computing::ComputingLimit;
use computing::ComputingPermit;
pub(super) use queue::RunningLimits;
use slots::ComputingSlot;
pub(super) use slots::ComputingSlots;
#[cfg(test)]
pub(super) use slots::SlotTimes;

/// Idle time after which a thread ends.
const IDLE_THREAD_LIFE: Duration = Duration::from_secs(10);

/// Maximum time that closing a pool waits for jobs that have begun.
pub(super) const CLOSING_WAIT_MAX: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for blocking jobs. Threads start when there is work and end when there has
/// been none for a while. No runtime is needed: the thread that ran a job wakes the task that waits
/// for it.
///
/// The owners of jobs take turns ([`IoContext`]), and one owner does not get all threads
/// ([`RunningLimits`]). One further thread is for [`run_prioritized`](Self::run_prioritized).
pub(crate) struct Workers {
    shared: Arc<Shared>,
    slots: ComputingSlots,
}

struct Shared {
    name: String,
    threads_max: usize,
    budget: &'static ThreadBudget,
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

struct State {
    jobs: JobQueue<Job>,
    threads: usize,
    /// Number of threads without a job: they wait for one, or have just been started.
    idle: usize,
    closed: bool,
}

/// Limits that apply to a job, besides that of the threads.
#[derive(Clone, Copy, Default)]
pub(super) struct JobLimits<'a> {
    /// A limit of which the job holds a permit until it ends. The permit is taken before the slot.
    pub(super) permits: Option<&'a ComputingLimit>,
    /// Slots of all pools, of which a CPU-bound job holds one until it ends.
    pub(super) slots: Option<&'a ComputingSlots>,
    /// True for a job that continues after its time slice: such jobs and new jobs of the owner take
    /// turns.
    pub(super) is_continued: bool,
}

/// An error: the job panicked, and its result is lost.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread panicked")]
pub(crate) struct JobPanicked;

impl Workers {
    /// Creates a pool that runs jobs within these limits. Its threads beyond the first one count
    /// towards `budget`; `slots` are those of its CPU-bound jobs.
    pub(crate) fn new(
        name: &str,
        limits: RunningLimits,
        budget: &'static ThreadBudget,
        slots: ComputingSlots,
    ) -> Self {
        let jobs = JobQueue::new(limits);
        let shared = Shared {
            name: name.into(),
            threads_max: limits.jobs_max().saturating_add(1),
            budget,
            state: Mutex::new(State { jobs, threads: 0, idle: 0, closed: false }),
            work: Condvar::new(),
            ended: Condvar::new(),
        };
        Self { shared: Arc::new(shared), slots }
    }

    /// Runs `job` on a thread. If the future is dropped, or its [`IoContext`] is cancelled, before
    /// a thread has begun the job, the job is dropped. A job that has begun is completed in any
    /// case, and its result is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobPanicked> {
        self.run_within(JobLimits::default(), job).await
    }

    /// Runs `job` as [`run`](Self::run) does, once it holds the permit and the slot that `limits`
    /// require. The future need not be polled for that.
    pub(super) async fn run_within<T: Send + 'static>(
        &self,
        limits: JobLimits<'_>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobPanicked> {
        let (done, result) = oneshot::channel();
        let context = IoContext::current();
        let owner = context.as_ref().map(|context| Arc::clone(context.owner()));
        if let Some(context) = &context {
            context.allow_cancel();
        }
        let transfer = context.clone();
        let job = move || {
            // A job that is dropped while it moves between two queues is found in neither.
            if done.is_closed() || context.as_ref().is_some_and(|context| !context.begin()) {
                return;
            }
            let value = job();
            if let Some(context) = context {
                context.end();
            }
            // The receiver may have been dropped.
            let _ = done.send(value);
        };
        let mut waiting =
            WaitingJob { job: self.queue(limits, owner, Box::new(job)), is_over: false };
        let mut result = pin!(result);
        let result = poll_fn(|task| {
            if transfer.as_ref().is_some_and(|context| context.has_foreign_waiters()) {
                waiting.job.promote();
            }
            result.as_mut().poll(task)
        })
        .await;
        waiting.is_over = true;
        result.map_err(|_| JobPanicked)
    }

    /// Queues `job` for a permit, then for a slot, then for a thread.
    fn queue(&self, limits: JobLimits<'_>, owner: JobOwner, job: Job) -> Arc<QueuedJob> {
        let number = self.shared.lock().jobs.next_number();
        let class = |number| if limits.is_continued { continued(number) } else { number };
        let permit = limits.permits.map(|permits| (permits.clone(), class(permits.next_number())));
        let slot = limits.slots.map(|slots| (slots.clone(), class(slots.next_number())));
        let thread = (Arc::clone(&self.shared), number);
        let queued = Arc::new(QueuedJob::new(owner, permit, slot, thread));
        let Some((permits, number)) = queued.permit() else {
            queue_for_slot(&queued, job);
            return queued;
        };
        let with_permit = Arc::clone(&queued);
        let start = move |permit: ComputingPermit| {
            let job = move || {
                job();
                drop(permit);
            };
            queue_for_slot(&with_permit, Box::new(job));
        };
        permits.queue(queued.owner(), *number, &queued, Box::new(start));
        queued
    }

    /// Queues a hint, a CPU-bound `job` whose result no request waits for, for the owner of the
    /// current context. Returns `false` if too many hints wait. One hint runs at a time.
    pub(crate) fn run_hint(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let owner = IoContext::current().map(|context| Arc::clone(context.owner()));
        let (slots, owner_of_job) = (self.slots.clone(), owner.clone());
        let job = move || {
            let _slot = slots.wait(&owner_of_job);
            job();
        };
        self.shared.submit(|jobs| jobs.push_hint(&owner, Box::new(job)))
    }

    /// Returns the slots for CPU-bound jobs other than reads of the allocation map.
    pub(super) fn slots(&self) -> &ComputingSlots {
        &self.slots
    }

    /// Returns the limits of a job that needs a slot only.
    #[cfg(test)]
    pub(super) fn slot_limits(&self) -> JobLimits<'_> {
        JobLimits { permits: None, slots: Some(&self.slots), is_continued: false }
    }

    /// Returns the number of jobs queued so far.
    #[cfg(test)]
    pub(super) fn jobs(&self) -> u64 {
        self.shared.lock().jobs.numbered()
    }

    /// Runs `job` before all queued jobs. This is for syncs, of which a disk has one at a time, and
    /// for which other jobs wait.
    pub(crate) fn run_prioritized(&self, job: impl FnOnce() + Send + 'static) {
        self.priority_jobs().run_prioritized(job);
    }

    /// Returns a handle for [`run_prioritized`](Self::run_prioritized) that does not keep the pool
    /// open.
    pub(crate) fn priority_jobs(&self) -> PriorityJobs {
        PriorityJobs(Arc::clone(&self.shared))
    }
}

/// A handle of a pool that runs jobs before all queued ones. Closing the pool does not wait for
/// jobs that begin afterwards.
#[derive(Clone)]
pub(crate) struct PriorityJobs(Arc<Shared>);

impl PriorityJobs {
    /// Runs `job` as [`Workers::run_prioritized`] does.
    pub(crate) fn run_prioritized(&self, job: impl FnOnce() + Send + 'static) {
        self.0.submit(|jobs| jobs.push_prioritized(Box::new(job)));
    }
}

impl fmt::Debug for PriorityJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityJobs").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// A job whose result is awaited. Dropping this removes the job if no thread has begun it.
struct WaitingJob {
    job: Arc<QueuedJob>,
    /// True when the job has ended.
    is_over: bool,
}

impl Drop for WaitingJob {
    fn drop(&mut self) {
        if !self.is_over {
            self.job.remove();
        }
    }
}

/// Queues `job` for a slot, if it needs one, and then for a thread.
fn queue_for_slot(queued: &Arc<QueuedJob>, job: Job) {
    let Some((slots, number)) = queued.slot() else { return queued.submit(job) };
    let with_slot = Arc::clone(queued);
    let start = move |slot: ComputingSlot| {
        let job = move || {
            slot.begin();
            job();
            drop(slot);
        };
        with_slot.submit(Box::new(job));
    };
    slots.queue(queued.owner(), *number, queued, Box::new(start));
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit<T>(self: &Arc<Self>, push: impl FnOnce(&mut JobQueue<Job>) -> T) -> T {
        let mut state = self.lock();
        let pushed = push(&mut state.jobs);
        self.wake(state);
        pushed
    }

    /// Wakes a waiting thread if a job may run, or starts a new one if too few threads wait. If no
    /// new thread is allowed now, the next job tries again.
    fn wake(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let runnable = state.jobs.runnable();
        if runnable == 0 {
            return;
        }
        let may_start = runnable > state.idle && state.threads < self.threads_max;
        if !may_start || !self.budget.take_slot(state.threads) {
            drop(state);
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        state.idle += 1;
        drop(state);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.name.clone());
        if let Err(error) = thread.spawn(move || shared.serve()) {
            self.handle_spawn_failure(&error);
        }
    }

    /// Handles a failure to start a thread. Other threads may do the work; if there are none, this
    /// thread does it, so that the jobs are late but not lost.
    fn handle_spawn_failure(&self, error: &std::io::Error) {
        tracing::warn!(pool = self.name, %error, "cannot start another I/O thread");
        let mut state = self.lock();
        state.idle -= 1;
        self.remove_thread(&mut state);
        while state.threads == 0
            && let Some((permit, job)) = state.jobs.pop()
        {
            drop(state);
            run(job);
            state = self.lock();
            state.end(permit);
        }
        drop(state);
        self.work.notify_one();
    }

    /// Removes an ending thread from the counts.
    fn remove_thread(&self, state: &mut State) {
        state.threads -= 1;
        self.budget.release_slot(state.threads);
    }

    /// Runs jobs until the thread ends.
    fn serve(self: &Arc<Self>) {
        let mut state = self.lock();
        state.idle -= 1;
        loop {
            if let Some((permit, job)) = state.jobs.pop() {
                // The end of the previous job may allow two jobs to run.
                self.wake(state);
                run(job);
                state = self.lock();
                state.end(permit);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (guard, waited) = self
                .work
                .wait_timeout(state, IDLE_THREAD_LIFE)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.runnable() == 0 {
                break;
            }
        }
        self.remove_thread(&mut state);
        self.ended.notify_all();
    }
}

impl State {
    /// Records that a job has ended.
    fn end(&mut self, permit: Option<RunningJob>) {
        if let Some(permit) = permit {
            self.jobs.end(&permit);
        }
    }
}

/// Runs a job. A panic ends the job, not the thread; the future of the job returns [`JobPanicked`].
fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl Drop for Workers {
    /// Completes queued jobs and waits for them, unless they take too long.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.work.notify_all();
        let ended = &self.shared.ended;
        let busy = |state: &mut State| state.threads > 0;
        let _ = ended.wait_timeout_while(state, CLOSING_WAIT_MAX, busy);
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::{closes, test_workers};
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Goal: many jobs are all done, never by more threads than allowed, and no thread is left
    /// after the pool.
    #[test]
    fn threads_of_a_pool_are_bounded() {
        const JOBS: usize = 512;
        static NOW: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let workers = test_workers(1, 4);
        let jobs = (0..JOBS).map(|n| {
            workers.run(move || {
                MOST.fetch_max(NOW.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_micros(100));
                NOW.fetch_sub(1, SeqCst);
                n
            })
        });
        let results = block_on(futures_util::future::join_all(jobs));
        let sum: usize = results.into_iter().map(Result::unwrap).sum();
        assert_eq!(sum, JOBS * (JOBS - 1) / 2);
        assert!((1..=3).contains(&MOST.load(SeqCst)));
        let shared = Arc::clone(&workers.shared);
        closes(|| drop(workers), || shared.lock().threads == 0);
    }

    /// Goal: a job that panics is reported to its requester and affects no later job; a job that
    /// has begun is completed even if its future was dropped.
    #[test]
    fn panicked_and_dropped_jobs() {
        let workers = test_workers(1, 0);
        let panicked = block_on(workers.run(|| panic!("expected")));
        assert!(matches!(panicked, Err(JobPanicked)));
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        let mut job = Box::pin(workers.run(move || {
            begun.send(()).unwrap();
            let _ = stopped.recv();
            count.fetch_add(1, SeqCst)
        }));
        assert!((&mut job).now_or_never().is_none());
        begins.recv().unwrap();
        drop((job, stop));
        assert_eq!(block_on(workers.run(|| 7)).unwrap(), 7);
        assert_eq!(done.load(SeqCst), 1);
    }

    /// Keeps one thread of `workers` busy until the sender is dropped.
    fn occupy(
        workers: &Workers,
    ) -> (std::sync::mpsc::Sender<()>, BoxFuture<'_, Result<(), JobPanicked>>) {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let mut job = workers
            .run(move || {
                begun.send(()).unwrap();
                let _ = stopped.recv();
            })
            .boxed();
        assert!((&mut job).now_or_never().is_none());
        begins.recv().unwrap();
        (stop, job)
    }

    /// Fault: jobs of aborted commands were still done, before jobs of other owners: an initiator
    /// that sent and aborted commands kept a disk busy with work that no request waited for.
    #[test]
    fn jobs_not_begun_can_be_dropped_or_cancelled() {
        let workers = test_workers(1, 0);
        let (stop, busy) = occupy(&workers);
        let count = Arc::new(AtomicUsize::new(0));
        let job = || {
            let (count, context) = (Arc::clone(&count), IoContext::new(&Arc::default()));
            let run = workers.run(move || count.fetch_add(1, SeqCst));
            let scope = Arc::clone(&context);
            let mut future = async move { scope.scope(run).await }.boxed();
            assert!((&mut future).now_or_never().is_none());
            (context, future)
        };
        let (dropped, (cancelled, waits), (kept, stays)) = (job(), job(), job());
        drop(dropped);
        assert_eq!(workers.shared.lock().jobs.len(), 2);
        assert!(cancelled.cancel());
        drop(stop);
        block_on(busy).unwrap();
        assert_eq!(block_on(stays).unwrap(), 0, "it is the first");
        assert!(matches!(block_on(waits), Err(JobPanicked)));
        assert!(!kept.cancel(), "it was done");
        assert_eq!(count.load(SeqCst), 1);
    }

    /// Fault: all owners had one queue, so the jobs of one initiator kept all others waiting.
    /// Method: one owner has many jobs in the queue when another owner queues one.
    #[test]
    fn owners_take_turns() {
        let workers = test_workers(1, 0);
        let (stop, busy) = occupy(&workers);
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let (one, other) = (Arc::default(), Arc::default());
        let owners = std::iter::repeat_n(&one, 5).chain([&other]);
        let mut jobs: Vec<_> = owners
            .enumerate()
            .map(|(number, owner)| {
                let (order, context) = (Arc::clone(&order), IoContext::new(owner));
                let run = workers.run(move || order.lock().unwrap().push(number));
                async move { context.scope(run).await }.boxed()
            })
            .collect();
        assert!(jobs.iter_mut().all(|job| job.now_or_never().is_none()));
        drop(stop);
        block_on(busy).unwrap();
        block_on(futures_util::future::join_all(jobs));
        assert_eq!(*order.lock().unwrap(), [0, 5, 1, 2, 3, 4]);
    }

    /// Fault: jobs of one owner that took long, or hung, occupied all threads of a disk.
    #[test]
    fn one_owner_does_not_get_all_threads() {
        let workers = test_workers(2, 0);
        let (stop, busy) = occupy(&workers);
        let mut waits = workers.run(|| ()).boxed();
        assert!((&mut waits).now_or_never().is_none());
        let other = IoContext::new(&Arc::default());
        assert_eq!(block_on(other.scope(workers.run(|| 7))).unwrap(), 7);
        assert!((&mut waits).now_or_never().is_none());
        drop(stop);
        block_on(busy).unwrap();
        block_on(waits).unwrap();
        assert_eq!(workers.shared.lock().jobs.len(), 0);
    }

    /// Fault: prefetches counted as jobs of the server, so an owner whose transfers hung also took
    /// the threads left to other owners, by prefetches that hung as well. Even without prefetches,
    /// the transfers of two owners occupied all threads. Method: many owners have far more jobs of
    /// both kinds than there are threads, and all hang; then another owner queues a job, followed
    /// by a sync.
    #[test]
    fn transfers_and_prefetches_that_hang_leave_threads_to_others() {
        const HANG: usize = 31;
        let workers = test_workers(HANG + 1, 30);
        let gate = Arc::new(std::sync::RwLock::new(()));
        let closed = gate.write().unwrap();
        let owners: Vec<_> = (0..HANG).map(|_| Arc::default()).collect();
        let mut hang = Vec::new();
        for owner in &owners {
            for _ in 0..50 {
                let gate = Arc::clone(&gate);
                let hint = || workers.run_hint(move || drop(gate.read()));
                IoContext::new(owner).scope_sync(hint);
            }
            for _ in 0..50 {
                let (gate, context) = (Arc::clone(&gate), IoContext::new(owner));
                let job = workers.run(move || drop(gate.read()));
                hang.push(async move { context.scope(job).await }.boxed());
            }
        }
        assert!(hang.iter_mut().all(|job| job.now_or_never().is_none()));
        let other = IoContext::new(&Arc::default());
        assert_eq!(block_on(other.scope(workers.run(|| 7))).unwrap(), 7);
        let (synced, syncs) = std::sync::mpsc::channel();
        workers.run_prioritized(move || synced.send(()).unwrap());
        syncs.recv().unwrap();
        drop((closed, hang));
        let shared = Arc::clone(&workers.shared);
        closes(|| drop(workers), || shared.lock().threads == 0);
    }

    /// Fault: the pools of many disks that hung could have more threads than the system allows a
    /// service; the core then did the work itself, and hung.
    #[test]
    fn the_threads_of_all_pools_are_bounded() {
        let budget: &ThreadBudget = Box::leak(Box::new(ThreadBudget::new(3)));
        let limits = RunningLimits { owners_max: 1, shared_max: 8 };
        let slots = ComputingSlots::new(usize::MAX);
        let pool = || Workers::new("test", limits, budget, slots.clone());
        let pools: Vec<_> = (0..4).map(|_| pool()).collect();
        let gate = Arc::new(std::sync::RwLock::new(()));
        let closed = gate.write().unwrap();
        let mut hang = Vec::new();
        for pool in &pools {
            for _ in 0..5 {
                let gate = Arc::clone(&gate);
                hang.push(pool.run(move || drop(gate.read())).boxed());
            }
        }
        assert!(hang.iter_mut().all(|job| job.now_or_never().is_none()));
        let threads: Vec<usize> = pools.iter().map(|pool| pool.shared.lock().threads).collect();
        assert_eq!(threads, [4, 1, 1, 1]);
        drop(closed);
        for result in block_on(futures_util::future::join_all(hang)) {
            result.unwrap();
        }
        for pool in pools {
            let shared = Arc::clone(&pool.shared);
            closes(|| drop(pool), || shared.lock().threads == 0);
        }
        assert_eq!(budget.taken(), 0);
    }
}

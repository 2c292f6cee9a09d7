//! A limit on jobs that are CPU-bound in the kernel.
//!
//! A pool has many threads because most of its jobs wait for a disk. If all of them ran CPU-bound
//! jobs, they would take most of the processor from the threads of the cores.
//!
//! A permit belongs to a job, not to the future that waits for the job, and its release starts the
//! next job. The future might not be polled until its owner's next turn; a permit that belonged to
//! it would block all other jobs until then. A job that holds a permit for which a job of another
//! owner waits is urgent: it overtakes other jobs of its own owner.

use super::queue::{JobOwner, JobQueue, RunningJob, RunningLimits, is_same};
use super::queued_job::QueuedJob;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Time after which a job with a permit is assumed to wait for its disk, and no longer counts.
const COMPUTING_MAX: Duration = Duration::from_secs(1);

/// No limits in the queue: [`State::jobs_max`] is the limit.
const UNLIMITED: RunningLimits = RunningLimits { owners_max: usize::MAX, shared_max: usize::MAX };

/// Starts a job, which gets the permit.
type Start = Box<dyn FnOnce(ComputingPermit) + Send>;

/// A limit on the number of CPU-bound jobs at a time; their owners take turns.
#[derive(Clone)]
pub(in crate::file) struct ComputingLimit(Arc<Mutex<State>>);

struct State {
    /// Maximum number of jobs with a permit.
    jobs_max: usize,
    waiting: JobQueue<(Start, Weak<QueuedJob>)>,
    next_id: u64,
    granted: Vec<GrantedPermit>,
    /// True while a task watches the jobs with permits; it runs as long as other jobs wait for one.
    is_watched: bool,
}

/// Watches jobs that have permits, because a job that hangs never returns its permit.
struct Watch {
    limit: ComputingLimit,
    is_over: bool,
}

/// A permit in use, with its job.
struct GrantedPermit {
    id: u64,
    since: Instant,
    running: Option<RunningJob>,
    job: Weak<QueuedJob>,
}

/// A permit for one CPU-bound job, to be kept until the job has ended.
pub(in crate::file) struct ComputingPermit {
    limit: ComputingLimit,
    id: u64,
}

impl ComputingLimit {
    pub(in crate::file) fn new(jobs_max: usize) -> Self {
        // The queue needs no limit per owner: an owner with all permits keeps other owners waiting
        // for one job only.
        let waiting = JobQueue::new(UNLIMITED);
        Self(Arc::new(Mutex::new(State {
            jobs_max,
            waiting,
            next_id: 0,
            granted: Vec::new(),
            is_watched: false,
        })))
    }

    /// Takes a permit if one is free and no job waits for it.
    pub(in crate::file) fn try_permit(&self) -> Option<ComputingPermit> {
        let mut state = self.state();
        let now = Instant::now();
        let is_free = state.waiting.runnable() == 0 && state.is_free(now);
        let id = is_free.then(|| state.take(now, None, Weak::new()));
        drop(state);
        id.map(|id| ComputingPermit { limit: self.clone(), id })
    }

    /// Returns a number for a job that is queued later.
    pub(super) fn next_number(&self) -> u64 {
        self.state().waiting.next_number()
    }

    /// Queues a job of this owner: `start` is called on any thread when the job may run. The job
    /// can be removed before by this number.
    pub(super) fn queue(&self, owner: &JobOwner, number: u64, job: &Arc<QueuedJob>, start: Start) {
        let mut state = self.state();
        state.waiting.push_as(owner, number, job.is_urgent(), (start, Arc::downgrade(job)));
        self.grant(state);
        self.watch();
    }

    /// Lets a job that has not received a permit come before the others of its owner.
    pub(super) fn promote(&self, owner: &JobOwner, number: u64) {
        self.state().waiting.promote(owner, number);
    }

    /// Starts a task that watches the jobs with permits, if other jobs wait for one.
    fn watch(&self) {
        let mut state = self.state();
        if state.is_watched || state.waiting.runnable() == 0 {
            return;
        }
        // Without a runtime, the next job that arrives or ends makes the check.
        let Ok(runtime) = Handle::try_current() else { return };
        state.is_watched = true;
        drop(state);
        let watch = Watch { limit: self.clone(), is_over: false };
        runtime.spawn(watch.keep_granting());
    }

    /// Removes a job that has not received a permit.
    pub(super) fn remove(&self, owner: &JobOwner, number: u64) -> Option<Start> {
        self.state().waiting.remove(owner, number).map(|(start, _)| start)
    }

    /// Returns the number of jobs that wait for a permit.
    #[cfg(test)]
    pub(in crate::file) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts waiting jobs as long as permits are free. Jobs with a permit are urgent while jobs of
    /// other owners wait for it.
    fn grant(&self, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let starts: Vec<_> = std::iter::from_fn(|| state.begin_next(now)).collect();
        let urgent = state.jobs_to_promote();
        drop(state); // a job that is started takes other locks
        urgent.iter().for_each(|job| job.promote());
        for (start, id) in starts {
            start(ComputingPermit { limit: self.clone(), id });
        }
    }
}

impl Watch {
    async fn keep_granting(mut self) {
        loop {
            let due = {
                let mut state = self.limit.state();
                let due = state.next_due();
                state.is_watched = due.is_some();
                due
            };
            self.is_over = due.is_none();
            let Some(due) = due else { return };
            tokio::time::sleep_until(due).await;
            self.limit.grant(self.limit.state());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            // The runtime ends: another one may take over the watch.
            self.limit.state().is_watched = false;
        }
    }
}

impl State {
    /// Returns the next time at which a job with a permit stops counting; `None` if no job waits.
    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let ends = self.granted.iter().map(|granted| granted.since + COMPUTING_MAX);
        let next = ends.filter(|end| *end > now).min().unwrap_or(now + COMPUTING_MAX);
        (self.waiting.runnable() > 0).then_some(next)
    }

    /// Takes the next job for which a permit is free, and counts it.
    fn begin_next(&mut self, now: Instant) -> Option<(Start, u64)> {
        if !self.is_free(now) {
            return None;
        }
        let (running, (start, job)) = self.waiting.pop()?;
        Some((start, self.take(now, running, job)))
    }

    /// Returns true if a permit is free.
    fn is_free(&self, now: Instant) -> bool {
        let computes = |granted: &&GrantedPermit| now.duration_since(granted.since) < COMPUTING_MAX;
        self.granted.iter().filter(computes).count() < self.jobs_max
    }

    fn take(&mut self, now: Instant, running: Option<RunningJob>, job: Weak<QueuedJob>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.granted.push(GrantedPermit { id, since: now, running, job });
        id
    }

    /// Returns the jobs with permits that jobs of other owners wait for.
    fn jobs_to_promote(&self) -> Vec<Arc<QueuedJob>> {
        let others_wait = |granted: &&GrantedPermit| {
            granted.running.as_ref().is_some_and(|running| {
                self.waiting.waiting_owners().any(|owner| !is_same(owner, &running.owner))
            })
        };
        self.granted
            .iter()
            .filter(others_wait)
            .filter_map(|granted| granted.job.upgrade())
            .collect()
    }
}

impl Drop for ComputingPermit {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        if let Some(at) = state.granted.iter().position(|granted| granted.id == self.id)
            && let Some(running) = state.granted.swap_remove(at).running
        {
            state.waiting.end(&running);
        }
        self.limit.grant(state);
    }
}

impl fmt::Debug for ComputingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputingLimit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// Jobs that have begun: their numbers and permits.
    type Begun = (usize, ComputingPermit);

    fn queue(limit: &ComputingLimit, owner: &JobOwner, job: usize, begun: &Sender<Begun>) -> u64 {
        let begun = begun.clone();
        let start = Box::new(move |permit| begun.send((job, permit)).unwrap());
        let number = limit.next_number();
        limit.queue(owner, number, &Arc::default(), start);
        number
    }

    fn begun(begins: &Receiver<Begun>) -> Option<usize> {
        begins.try_recv().ok().map(|(job, _permit)| job)
    }

    /// Goal: the number of CPU-bound jobs stays within the limit and owners take turns; a job that
    /// is dropped, while it waits or with its permit, lets the next job start.
    #[test]
    fn owners_take_turns_and_no_job_is_lost() {
        let limit = ComputingLimit::new(2);
        let (one, other): (JobOwner, JobOwner) = (Some(Arc::default()), Some(Arc::default()));
        let held = [limit.try_permit().unwrap(), limit.try_permit().unwrap()];
        assert!(limit.try_permit().is_none());
        let (begin, begins) = mpsc::channel();
        let owners = [&one, &one, &one, &one, &other, &one];
        let numbers: Vec<u64> = owners
            .iter()
            .enumerate()
            .map(|(job, owner)| queue(&limit, owner, job, &begin))
            .collect();
        assert!(begun(&begins).is_none());
        assert!(limit.remove(&one, numbers[1]).is_some());
        assert!(limit.remove(&other, numbers[1]).is_none());
        drop(held);
        let running: Vec<_> = begins.try_iter().collect();
        assert_eq!(running.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [0, 4]);
        assert!(limit.try_permit().is_none(), "all permits are in use");
        drop(running);
        // Each job is dropped as soon as it has begun.
        assert_eq!(std::iter::from_fn(|| begun(&begins)).collect::<Vec<_>>(), [2, 3, 5]);
        assert!(limit.state().granted.is_empty());
    }

    /// Goal: no job gets a permit at once while other jobs wait for one.
    #[test]
    fn waiting_jobs_precede_new_ones() {
        let limit = ComputingLimit::new(1);
        let held = limit.try_permit().unwrap();
        let (begin, begins) = mpsc::channel();
        queue(&limit, &None, 1, &begin);
        limit.state().granted[0].since -= COMPUTING_MAX;
        assert!(limit.try_permit().is_none());
        drop(held);
        assert_eq!(begun(&begins), Some(1));
        assert!(limit.try_permit().is_some());
    }

    /// Goal: jobs that wait for a disk that hangs do not block other jobs.
    #[test]
    fn a_hanging_job_does_not_count() {
        let limit = ComputingLimit::new(1);
        let (begin, begins) = mpsc::channel();
        queue(&limit, &None, 0, &begin);
        let hangs = begins.try_recv().unwrap();
        queue(&limit, &None, 1, &begin);
        assert!(begins.try_recv().is_err());
        limit.state().granted[0].since -= COMPUTING_MAX;
        queue(&limit, &None, 2, &begin);
        let next = begins.try_recv().unwrap();
        assert_eq!(next.0, 1);
        assert!(begins.try_recv().is_err(), "one takes the place of the other");
        drop(next);
        assert_eq!(begun(&begins), Some(2));
        drop(hangs);
        assert!(limit.state().granted.is_empty());
    }

    /// Fault: on a disk that hung in part, four reads kept their permits, and a fifth read, of
    /// cached blocks, never got one: no job arrived or ended that would have led to a check.
    #[tokio::test(start_paused = true)]
    async fn a_hanging_job_is_detected_without_other_events() {
        let limit = ComputingLimit::new(1);
        let (begin, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let queue = |job: usize| {
            let begin = begin.clone();
            let start = Box::new(move |permit| begin.send((job, permit)).unwrap());
            limit.queue(&None, limit.next_number(), &Arc::default(), start);
        };
        [0, 1, 2].into_iter().for_each(queue);
        let mut held = Vec::new();
        for job in 0..3 {
            let begun = tokio::time::timeout(2 * COMPUTING_MAX, begins.recv()).await;
            let (number, permit) = begun.expect("no job is watched").unwrap();
            assert_eq!(number, job);
            held.push(permit);
        }
        drop(held);
        tokio::time::sleep(2 * COMPUTING_MAX).await;
        let state = limit.state();
        assert!(!state.is_watched && state.granted.is_empty());
    }
}

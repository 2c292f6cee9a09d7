//! A limit on CPU-bound jobs of all devices together.
//!
//! The limits of each device ([`ComputingLimit`](super::ComputingLimit)) do not bound many devices
//! together: with 256 files, 256 threads would compete with the threads of the cores. A slot
//! belongs to a job: the job goes to its pool when it gets the slot, and returns the slot when it
//! ends. A job that waits for its disk uses no CPU time and does not count; the state of its thread
//! shows that. A job that has a slot never waits for a permit of a device, so a permit is always
//! taken first.
//!
//! Clears may be long, and can stop after each piece: they leave the slot when their time slice is
//! over and another job may run, and queue the rest as a new job. No thread waits for a slot
//! meanwhile, and a clear that no job waits for continues without a change of threads. A clear that
//! other owners wait for leaves it to jobs of its own owner only if others wait for these, too.
//! After a longer job its owner pauses ([`pauses`]). A job that continues and new jobs of its owner
//! take turns, so that a short one waits for one slice: a server that exports LUNs of another one
//! is one owner there.
//!
//! Maps of allocated blocks have a slot of their own, which rests as long as they have computed:
//! maps of many hosts take half of a processor. They stop like clears; a system call takes about a
//! millisecond ([`data_end`](crate::file::data_end)).

mod pauses;

use super::queue::{JobOwner, JobQueue, RunningJob, RunningLimits, is_same};
use super::queued_job::QueuedJob;
use pauses::OwnerPauses;
use rustix::thread::Pid;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

/// Interval of the checks of a job that uses the CPU.
const COMPUTING_CHECK: Duration = Duration::from_millis(1);

/// Interval of the checks of a job that waits for its disk.
const WAITING_CHECK: Duration = Duration::from_millis(10);

/// Time after which a job that no thread has begun is assumed to wait for a thread, because all
/// threads of its pool hang.
const BEGIN_MAX: Duration = Duration::from_millis(20);

/// Time after which a job that still computes no longer counts, so that other jobs get a slot.
const COMPUTING_MAX: Duration = Duration::from_secs(1);

/// Length of the time slice of a job that can stop and continue later. A change to another job
/// costs a fraction of this.
const TIME_SLICE: Duration = Duration::from_millis(1);

/// A job that takes longer than this many slices is a long one.
const LONG_JOB_SLICES: u32 = 2;

/// Rest of the slot of maps, as a multiple of the time for which they have computed.
const MAP_REST_FACTOR: u32 = 1;

/// Time without waiting jobs after which the watching thread ends.
const WATCHER_IDLE_LIFE: Duration = Duration::from_secs(10);

/// No limits in the queue: [`State::jobs_max`] is the limit.
const UNLIMITED: RunningLimits = RunningLimits { owners_max: usize::MAX, shared_max: usize::MAX };

/// Time limits of jobs that have slots; the constants are the defaults, tests use others.
#[derive(Clone, Copy)]
pub(in crate::file) struct SlotTimes {
    pub(in crate::file) computing_check: Duration,
    pub(in crate::file) begin_max: Duration,
    pub(in crate::file) computing_max: Duration,
    pub(in crate::file) time_slice: Duration,
    /// Time for which no job gets a slot after jobs of more than a slice together, as a multiple of
    /// their processor time.
    pub(in crate::file) rest_factor: u32,
}

impl Default for SlotTimes {
    fn default() -> Self {
        Self {
            computing_check: COMPUTING_CHECK,
            begin_max: BEGIN_MAX,
            computing_max: COMPUTING_MAX,
            time_slice: TIME_SLICE,
            rest_factor: 0,
        }
    }
}

/// Passes a job to its pool, with its slot.
type Start = Box<dyn FnOnce(ComputingSlot) + Send>;

type WaitingJob = (Start, Weak<QueuedJob>);

/// Slots of all devices, each for one CPU-bound job; owners of jobs take turns.
#[derive(Clone)]
pub(in crate::file) struct ComputingSlots(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    job_waits: Condvar,
}

struct State {
    jobs_max: usize,
    times: SlotTimes,
    waiting: JobQueue<WaitingJob>,
    pauses: OwnerPauses,
    /// Processor time of jobs after which the slots have not rested.
    unrested: Duration,
    /// No job gets a slot before this time.
    rests_until: Instant,
    next_id: u64,
    in_use: Vec<SlotInUse>,
    /// True while a thread watches the jobs, which it does as long as some wait for a slot.
    is_watched: bool,
}

/// A slot that is in use.
struct SlotInUse {
    id: u64,
    permit: Option<RunningJob>,
    job: Weak<QueuedJob>,
    /// The thread that has begun the job.
    thread: Option<Pid>,
    /// Processor time of this thread when it began the job.
    thread_time: Duration,
    since: Instant,
    computes: bool,
    check_at: Instant,
}

/// The time slice of a job that can stop and continue later with another slot.
pub(in crate::file) struct TimeSlice {
    slots: ComputingSlots,
    job: Weak<QueuedJob>,
    end: Instant,
}

/// The slot of one job, to be kept until the job has ended.
pub(in crate::file) struct ComputingSlot {
    slots: ComputingSlots,
    id: u64,
}

impl ComputingSlots {
    pub(in crate::file) fn new(jobs_max: usize) -> Self {
        Self::with_times(jobs_max, SlotTimes::default())
    }

    pub(in crate::file) fn with_times(jobs_max: usize, times: SlotTimes) -> Self {
        let waiting = JobQueue::new(UNLIMITED);
        let state = State {
            jobs_max,
            times,
            waiting,
            pauses: OwnerPauses::default(),
            unrested: Duration::ZERO,
            rests_until: Instant::now(),
            next_id: 0,
            in_use: Vec::new(),
            is_watched: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), job_waits: Condvar::new() }))
    }

    /// Creates one slot for every two processors: with one for each, cores and jobs would each get
    /// half of the processors.
    pub(in crate::file) fn of_machine() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2))
    }

    /// Creates the slot for maps.
    pub(in crate::file) fn of_maps() -> Self {
        Self::with_times(1, SlotTimes { rest_factor: MAP_REST_FACTOR, ..SlotTimes::default() })
    }

    /// Begins the time slice of the job that this thread has just begun.
    pub(in crate::file) fn time_slice(&self) -> TimeSlice {
        let state = self.state();
        let thread = Some(rustix::thread::gettid());
        let in_use = state.in_use.iter().find(|in_use| in_use.thread == thread);
        let job = in_use.map(|in_use| Weak::clone(&in_use.job)).unwrap_or_default();
        let end = Instant::now() + state.times.time_slice;
        TimeSlice { slots: self.clone(), job, end }
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
        state.pauses.queued(owner, Instant::now());
        self.grant(state);
        state = self.state();
        if state.waiting.runnable() > 0 {
            self.watch(&mut state);
        }
    }

    /// Removes a job that has not received a slot.
    pub(super) fn remove(&self, owner: &JobOwner, number: u64) -> Option<Start> {
        self.state().waiting.remove(owner, number).map(|(start, _)| start)
    }

    /// Lets a job that has not received a slot come before the others of its owner, also while the
    /// owner pauses, but not while the slots rest.
    pub(super) fn promote(&self, owner: &JobOwner, number: u64) {
        let mut state = self.state();
        if state.waiting.promote(owner, number) {
            self.grant(state);
        }
    }

    /// Waits on this thread until a job of this owner may run, and begins it.
    pub(super) fn wait(&self, owner: &JobOwner) -> Option<ComputingSlot> {
        let (sender, granted) = mpsc::channel();
        let (number, job) = (self.next_number(), Arc::default());
        self.queue(owner, number, &job, Box::new(move |slot| drop(sender.send(slot))));
        let slot = granted.recv().ok();
        slot.inspect(ComputingSlot::begin)
    }

    /// Returns the number of jobs that wait for a slot or have one, at one moment.
    #[cfg(test)]
    pub(in crate::file) fn jobs(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.in_use.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts jobs as long as slots are free.
    fn grant(&self, mut state: MutexGuard<'_, State>) {
        let now = Instant::now();
        let mut starts = Vec::new();
        if state.waiting.runnable() > 0 {
            let mut computing = state.computing(now);
            while computing < state.jobs_max
                && let Some((permit, (start, job))) = state.pop(now)
            {
                computing += 1;
                starts.push((start, state.take(now, permit, job)));
            }
        }
        drop(state); // a job that is started takes the lock of its pool
        for (start, id) in starts {
            start(ComputingSlot { slots: self.clone(), id });
        }
    }

    /// Starts or wakes the thread that watches the jobs with slots, because no event shows when a
    /// job begins to wait for its disk.
    fn watch(&self, state: &mut State) {
        if state.is_watched {
            self.0.job_waits.notify_one();
            return;
        }
        let slots = self.clone();
        let thread = std::thread::Builder::new().name("lunar-slots".into());
        match thread.spawn(move || slots.run_watcher()) {
            Ok(_) => state.is_watched = true,
            // The next job tries again.
            Err(error) => tracing::warn!(
                %error,
                "cannot start the thread that monitors CPU-bound jobs"
            ),
        }
    }

    /// Starts waiting jobs at intervals until none has waited for a while; the watching thread runs
    /// this.
    fn run_watcher(&self) {
        loop {
            let state = self.state();
            let is_idle = |state: &mut State| state.waiting.runnable() == 0;
            let waited = self.0.job_waits.wait_timeout_while(state, WATCHER_IDLE_LIFE, is_idle);
            let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                state.is_watched = false;
                return;
            }
            drop(state);
            std::thread::sleep(COMPUTING_CHECK);
            self.grant(self.state());
        }
    }

    /// Returns the number of jobs that wait for a slot.
    #[cfg(test)]
    pub(in crate::file) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}

impl State {
    /// Takes the next job that may have a slot.
    fn pop(&mut self, now: Instant) -> Option<(Option<RunningJob>, WaitingJob)> {
        self.waiting.pop_unless(|owner, is_urgent| {
            must_wait(&self.pauses, self.rests_until, owner, is_urgent, now)
        })
    }

    /// Removes a job that has ended or is lost, and records its time.
    fn end(&mut self, id: u64) {
        let Some(at) = self.in_use.iter().position(|in_use| in_use.id == id) else { return };
        let in_use = self.in_use.swap_remove(at);
        let Some(permit) = in_use.permit else { return };
        // While a job waits for its disk, it takes no time of the slot.
        let time = match in_use.thread {
            Some(thread) if thread == rustix::thread::gettid() => {
                thread_time().saturating_sub(in_use.thread_time)
            }
            _ => Duration::ZERO,
        };
        let (now, slice) = (Instant::now(), self.times.time_slice);
        let slices = LONG_JOB_SLICES * slice;
        self.unrested += time;
        if self.unrested > slice {
            let rest = std::mem::take(&mut self.unrested).saturating_mul(self.times.rest_factor);
            self.rests_until = self.rests_until.max(now + rest);
        }
        self.pauses.ended(&permit.owner, time, slices, now);
        self.waiting.end(&permit);
    }

    /// Returns the number of jobs that compute.
    fn computing(&mut self, now: Instant) -> usize {
        let times = self.times;
        self.in_use.iter_mut().map(|in_use| usize::from(in_use.computes(now, times))).sum()
    }

    fn take(&mut self, now: Instant, permit: Option<RunningJob>, job: Weak<QueuedJob>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let check_at = now + self.times.computing_check;
        let in_use = SlotInUse {
            id,
            permit,
            job,
            thread: None,
            thread_time: Duration::ZERO,
            since: now,
            computes: true,
            check_at,
        };
        self.in_use.push(in_use);
        id
    }
}

/// Returns true if no job of this owner may have a slot now. Urgent jobs do not wait for the pause
/// of their owner, but for the rest of the slots: else two owners that wait for each other would
/// leave none.
fn must_wait(
    pauses: &OwnerPauses,
    rests_until: Instant,
    owner: &JobOwner,
    is_urgent: bool,
    now: Instant,
) -> bool {
    now < rests_until || !is_urgent && pauses.is_paused(owner, now)
}

impl SlotInUse {
    fn computes(&mut self, now: Instant, times: SlotTimes) -> bool {
        if now >= self.check_at {
            let age = now.duration_since(self.since);
            self.computes = match self.thread {
                None => age < times.begin_max,
                Some(thread) => age < times.computing_max && is_runnable(thread),
            };
            let next = if self.computes { times.computing_check } else { WAITING_CHECK };
            self.check_at = now + next;
        }
        self.computes
    }
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns true unless the system reports that this thread of the process waits; proc(5).
fn is_runnable(thread: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let Ok(line) = std::fs::read(path) else { return true };
    // The state follows the name, which ends with the last parenthesis.
    let end = line.iter().rposition(|byte| *byte == b')');
    end.and_then(|end| line.get(end + 2)).is_none_or(|state| *state == b'R')
}

impl ComputingSlot {
    /// Records that this thread begins the job.
    pub(super) fn begin(&self) {
        let mut state = self.slots.state();
        let check = state.times.computing_check;
        if let Some(in_use) = state.in_use.iter_mut().find(|in_use| in_use.id == self.id) {
            in_use.thread = Some(rustix::thread::gettid());
            in_use.thread_time = thread_time();
            in_use.since = Instant::now();
            in_use.computes = true;
            in_use.check_at = in_use.since + check;
        }
    }
}

impl TimeSlice {
    /// Returns true when the slice has passed, and another job may run or the slots have to rest.
    /// While the job is urgent, those of its own owner count only if they are urgent as well.
    pub(in crate::file) fn is_over(&self) -> bool {
        let now = Instant::now();
        if now < self.end {
            return false;
        }
        let urgent = self.job.upgrade().filter(|job| job.is_urgent());
        let own = urgent.as_ref().map(|job| job.owner());
        let state = self.slots.state();
        let rests = state.times.rest_factor > 0;
        rests
            || state.waiting.is_ready_unless(|owner, is_urgent| {
                !is_urgent && own.is_some_and(|own| is_same(own, owner))
                    || must_wait(&state.pauses, state.rests_until, owner, is_urgent, now)
            })
    }
}

impl Drop for ComputingSlot {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        state.end(self.id);
        self.slots.grant(state);
    }
}

impl fmt::Debug for ComputingSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputingSlots").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

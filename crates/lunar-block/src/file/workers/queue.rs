//! The queue of jobs that wait for a worker thread; owners take turns.

use crate::MemoryOwner;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The owner of a job, compared by identity; `None` for the server itself.
pub(super) type JobOwner = Option<Arc<MemoryOwner>>;

/// Maximum number of hints of a queue that run at a time, because they are CPU-bound in the kernel.
const HINTS_MAX: usize = 1;

/// Maximum number of waiting hints of one owner; further ones are dropped.
const OWNER_WAITING_HINTS_MAX: usize = 4;

/// Maximum number of waiting hints of all owners; further ones are dropped.
const WAITING_HINTS_MAX: usize = 256;

/// Limits on the number of jobs of a queue that run at a time.
///
/// Each owner has one permit of its own. Of the shared permits an owner may take at most as many as
/// it leaves free: a single owner gets half of them. Jobs that hang therefore keep only jobs of the
/// same owner waiting, as long as fewer than `owners_max` owners have such jobs, however many each
/// of them has.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct RunningLimits {
    /// Maximum number of owners that have a running job.
    pub(in crate::file) owners_max: usize,
    /// Maximum number of running jobs besides the first one of each owner.
    pub(in crate::file) shared_max: usize,
}

impl RunningLimits {
    /// Returns the maximum number of running jobs of all owners.
    pub(super) const fn jobs_max(self) -> usize {
        self.owners_max.saturating_add(self.shared_max)
    }
}

/// The jobs of one owner: those that wait, and the number of those that run.
struct OwnerJobs<J> {
    owner: JobOwner,
    /// Waiting jobs for which jobs of other owners wait, by number.
    urgent: BTreeMap<u64, J>,
    /// Other waiting jobs by number, which is their order of arrival.
    waiting: BTreeMap<u64, J>,
    hints: VecDeque<J>,
    /// Number of running jobs, hints included.
    running: usize,
    /// True for the owner whose job was taken from the queue last.
    had_last_turn: bool,
    /// True if the last job was the rest of one that had begun before.
    had_continued: bool,
}

/// Numbers of jobs that continue others come after those of new jobs.
const CONTINUED: u64 = 1 << 63;

/// Returns the number of a job that continues another one: a rest that was queued when its time
/// slice was over.
pub(super) fn continued(number: u64) -> u64 {
    number | CONTINUED
}

/// Takes the next job of one owner: new jobs and rests of others take turns, so that a short job
/// waits for one slice of the long ones only.
fn pop_in_turn<J>(jobs: &mut BTreeMap<u64, J>, had_continued: &mut bool) -> Option<J> {
    let rest = jobs.range(CONTINUED..).next().map(|(number, _)| *number);
    let first = *jobs.first_key_value()?.0;
    let next = rest.filter(|_| !*had_continued).unwrap_or(first);
    *had_continued = next >= CONTINUED;
    jobs.remove(&next)
}

impl<J> OwnerJobs<J> {
    fn new(owner: JobOwner) -> Self {
        Self {
            owner,
            urgent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            hints: VecDeque::new(),
            running: 0,
            had_last_turn: false,
            had_continued: true,
        }
    }

    /// Returns the number of shared permits that the owner uses.
    fn shared(&self) -> usize {
        self.running.saturating_sub(1)
    }

    /// Returns the number of waiting jobs, with at most `hints_max` hints.
    fn ready(&self, hints_max: usize) -> usize {
        self.wanted() + self.hints.len().min(hints_max)
    }

    /// Returns the number of waiting jobs without hints.
    fn wanted(&self) -> usize {
        self.urgent.len() + self.waiting.len()
    }

    /// Takes the next job that is no hint.
    fn pop_wanted(&mut self) -> Option<J> {
        let jobs = if self.urgent.is_empty() { &mut self.waiting } else { &mut self.urgent };
        pop_in_turn(jobs, &mut self.had_continued)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.wanted() == 0 && self.hints.is_empty()
    }
}

/// The permit with which a job runs, to be returned when the job has ended.
#[derive(Debug)]
pub(super) struct RunningJob {
    pub(super) owner: JobOwner,
    is_hint: bool,
}

/// A queue in which owners take turns, job by job, within [`RunningLimits`]: no owner has two turns
/// in a row while a job of another owner waits and may run. Of the jobs of an owner, those come
/// first for which other owners wait, and hints come last.
pub(super) struct JobQueue<J> {
    limits: RunningLimits,
    next_number: u64,
    waiting_hints: usize,
    running_hints: usize,
    /// Number of owners that have a running job.
    running_owners: usize,
    /// Number of shared permits in use.
    shared: usize,
    /// Jobs that come before all others and belong to no owner.
    prioritized: VecDeque<J>,
    /// Owners that have jobs, in the order of their turns.
    owners: VecDeque<OwnerJobs<J>>,
}

impl<J> JobQueue<J> {
    pub(super) fn new(limits: RunningLimits) -> Self {
        Self {
            limits,
            next_number: 0,
            waiting_hints: 0,
            running_hints: 0,
            running_owners: 0,
            shared: 0,
            prioritized: VecDeque::new(),
            owners: VecDeque::new(),
        }
    }

    /// Returns the number of waiting jobs.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let waiting = |jobs: &OwnerJobs<J>| jobs.wanted() + jobs.hints.len();
        self.prioritized.len() + self.owners.iter().map(waiting).sum::<usize>()
    }

    /// Returns the number of jobs that have received a number.
    #[cfg(test)]
    pub(super) fn numbered(&self) -> u64 {
        self.next_number
    }

    /// Returns the number of waiting jobs that may run now, or a greater number. The result is 0
    /// exactly when [`pop`](Self::pop) returns `None`.
    pub(super) fn runnable(&self) -> usize {
        let free_owners = self.limits.owners_max.saturating_sub(self.running_owners);
        let free_shared = self.limits.shared_max.saturating_sub(self.shared);
        let (mut own, mut shared) = (0, 0);
        let free_hints = self.free_hints();
        for jobs in self.owners.iter().filter(|jobs| jobs.ready(free_hints) > 0) {
            let begins = jobs.running == 0;
            if begins && free_owners == 0 {
                continue;
            }
            own += usize::from(begins);
            // Each permit that the owner takes reduces the permits that it may leave free.
            let permits = free_shared.saturating_sub(jobs.shared()).div_ceil(2);
            shared += permits.min(jobs.ready(free_hints) - usize::from(begins));
        }
        self.prioritized.len() + own.min(free_owners) + shared.min(free_shared)
    }

    /// Queues a job before all others. The job takes no permit of an owner.
    pub(super) fn push_prioritized(&mut self, job: J) {
        self.prioritized.push_front(job);
    }

    /// Returns a number for a job that is queued later: the jobs of an owner run in the order of
    /// their numbers.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Queues a job; returns the number by which it can be removed.
    #[cfg(test)]
    pub(super) fn push(&mut self, owner: &JobOwner, job: J) -> u64 {
        let number = self.next_number();
        self.push_as(owner, number, false, job);
        number
    }

    /// Queues a job under this number. An urgent job comes before those of its owner that are not
    /// urgent.
    pub(super) fn push_as(&mut self, owner: &JobOwner, number: u64, is_urgent: bool, job: J) {
        let jobs = self.entry(owner);
        let waiting = if is_urgent { &mut jobs.urgent } else { &mut jobs.waiting };
        waiting.insert(number, job);
    }

    /// Makes a waiting job urgent; returns false if there is no such job.
    pub(super) fn promote(&mut self, owner: &JobOwner, number: u64) -> bool {
        let Some(at) = self.position(owner) else { return false };
        let jobs = &mut self.owners[at];
        let job = jobs.waiting.remove(&number);
        job.is_some_and(|job| jobs.urgent.insert(number, job).is_none())
    }

    /// Returns the owners of waiting jobs that are no hints.
    pub(super) fn waiting_owners(&self) -> impl Iterator<Item = &JobOwner> {
        self.owners.iter().filter(|jobs| jobs.wanted() > 0).map(|jobs| &jobs.owner)
    }

    /// Queues a hint, whose result no request waits for; returns `false` if too many hints wait.
    pub(super) fn push_hint(&mut self, owner: &JobOwner, job: J) -> bool {
        if self.waiting_hints >= WAITING_HINTS_MAX {
            return false;
        }
        let jobs = self.entry(owner);
        let has_room = jobs.hints.len() < OWNER_WAITING_HINTS_MAX;
        if has_room {
            jobs.hints.push_back(job);
            self.waiting_hints += 1;
        }
        has_room
    }

    /// Takes the next job that may run. The caller must call [`end`](Self::end) for its permit.
    pub(super) fn pop(&mut self) -> Option<(Option<RunningJob>, J)> {
        self.pop_unless(|_, _| false)
    }

    /// Takes the next job that may run, of an owner for which `must_wait` returns false. Its second
    /// argument is true if the next job of the owner is urgent.
    pub(super) fn pop_unless(
        &mut self,
        must_wait: impl Fn(&JobOwner, bool) -> bool,
    ) -> Option<(Option<RunningJob>, J)> {
        if let Some(job) = self.prioritized.pop_front() {
            return Some((None, job));
        }
        let at = self.next_owner(must_wait)?;
        let mut jobs = self.owners.remove(at)?;
        let (job, is_hint) = match jobs.pop_wanted() {
            Some(job) => (job, false),
            None => (jobs.hints.pop_front()?, true),
        };
        self.waiting_hints -= usize::from(is_hint);
        match jobs.running {
            0 => self.running_owners += 1,
            _ => self.shared += 1,
        }
        jobs.running += 1;
        self.running_hints += usize::from(is_hint);
        if let Some(last) = self.owners.iter_mut().rev().find(|jobs| jobs.had_last_turn) {
            last.had_last_turn = false;
        }
        jobs.had_last_turn = true;
        let permit = RunningJob { owner: jobs.owner.clone(), is_hint };
        self.owners.push_back(jobs);
        Some((Some(permit), job))
    }

    /// Returns true if [`pop_unless`](Self::pop_unless) would return a job.
    pub(super) fn is_ready_unless(&self, must_wait: impl Fn(&JobOwner, bool) -> bool) -> bool {
        !self.prioritized.is_empty() || self.next_owner(must_wait).is_some()
    }

    /// Returns the position of the owner whose job may run next.
    fn next_owner(&self, must_wait: impl Fn(&JobOwner, bool) -> bool) -> Option<usize> {
        self.owners
            .iter()
            .position(|jobs| self.may_run(jobs) && !must_wait(&jobs.owner, !jobs.urgent.is_empty()))
    }

    fn free_hints(&self) -> usize {
        HINTS_MAX.saturating_sub(self.running_hints)
    }

    fn may_run(&self, jobs: &OwnerJobs<J>) -> bool {
        if jobs.ready(self.free_hints()) == 0 {
            return false;
        }
        match jobs.running {
            0 => self.running_owners < self.limits.owners_max,
            _ => jobs.shared() < self.limits.shared_max.saturating_sub(self.shared),
        }
    }

    /// Records that the job in this permit has ended.
    pub(super) fn end(&mut self, permit: &RunningJob) {
        let Some(at) = self.position(&permit.owner) else { return };
        let jobs = &mut self.owners[at];
        jobs.running -= 1;
        self.running_hints -= usize::from(permit.is_hint);
        match jobs.running {
            0 => self.running_owners -= 1,
            _ => self.shared -= 1,
        }
        self.forget_idle(at);
    }

    /// Removes a job that no thread has begun.
    pub(super) fn remove(&mut self, owner: &JobOwner, number: u64) -> Option<J> {
        let at = self.position(owner)?;
        let jobs = &mut self.owners[at];
        let job = jobs.urgent.remove(&number).or_else(|| jobs.waiting.remove(&number))?;
        self.forget_idle(at);
        Some(job)
    }

    /// Returns the jobs of this owner. A new owner comes after all others, except the one that had
    /// the last turn.
    fn entry(&mut self, owner: &JobOwner) -> &mut OwnerJobs<J> {
        let at = self.position(owner).unwrap_or_else(|| {
            let after_last_turn = self.owners.back().is_some_and(|jobs| jobs.had_last_turn);
            let at = self.owners.len() - usize::from(after_last_turn);
            self.owners.insert(at, OwnerJobs::new(owner.clone()));
            at
        });
        &mut self.owners[at]
    }

    fn forget_idle(&mut self, at: usize) {
        if self.owners[at].is_idle() {
            self.owners.remove(at);
        }
    }

    fn position(&self, owner: &JobOwner) -> Option<usize> {
        self.owners.iter().position(|jobs| is_same(&jobs.owner, owner))
    }
}

/// Returns true if both are the same owner.
pub(super) fn is_same(one: &JobOwner, other: &JobOwner) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> JobOwner {
        Some(Arc::default())
    }

    /// Begins jobs until no more may run; returns their permits.
    fn begin_all(queue: &mut JobQueue<u32>) -> Vec<RunningJob> {
        let mut permits = Vec::new();
        while let Some((permit, _)) = queue.pop() {
            permits.extend(permit);
        }
        assert_eq!(queue.runnable(), 0);
        permits
    }

    /// Fault: jobs of two owners that hung occupied all threads of a disk: 16 of the first owner
    /// and 4 of the second. Method: one owner after another has more jobs than may run, and none
    /// ends.
    #[test]
    fn each_owner_runs_a_job_while_jobs_of_others_hang() {
        let limits = RunningLimits { owners_max: 32, shared_max: 30 };
        let mut queue = JobQueue::new(limits);
        let mut hang = Vec::new();
        let mut counts = Vec::new();
        for _ in 0..limits.owners_max {
            let owner = owner();
            for _ in 0..100 {
                queue.push(&owner, 0);
            }
            assert!(queue.runnable() > 0);
            let begun = begin_all(&mut queue);
            counts.push(begun.len());
            hang.extend(begun);
        }
        assert_eq!(counts[..7], [16, 9, 5, 3, 2, 1, 1]);
        assert!(counts[7..].iter().all(|count| *count == 1), "{counts:?}");
        queue.push(&owner(), 0);
        assert!(queue.pop().is_none(), "the limit of all owners");
        for permit in hang {
            queue.end(&permit);
        }
        assert_eq!((queue.running_owners, queue.shared), (0, 0));
    }

    /// Fault: an owner with a running job kept its position, so its next job ran before that of an
    /// owner that had begun to wait meanwhile.
    #[test]
    fn no_owner_has_two_turns_in_a_row_while_another_waits() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 1, shared_max: 0 });
        let owners: Vec<JobOwner> = (0..4).map(|_| owner()).collect();
        let push = |queue: &mut JobQueue<u32>, owner: usize, job| queue.push(&owners[owner], job);
        [1, 2, 3].into_iter().for_each(|job| _ = push(&mut queue, 0, job));
        let mut order = Vec::new();
        let mut next = |queue: &mut JobQueue<u32>| {
            let (permit, job) = queue.pop().unwrap();
            order.push(job);
            permit.unwrap()
        };
        let first = next(&mut queue);
        push(&mut queue, 1, 10);
        push(&mut queue, 2, 20);
        push(&mut queue, 1, 11);
        queue.end(&first);
        let second = next(&mut queue);
        push(&mut queue, 3, 30); // it does not come before owners that wait longer
        queue.end(&second);
        for _ in 0..5 {
            let permit = next(&mut queue);
            queue.end(&permit);
        }
        assert_eq!(order, [1, 10, 20, 2, 30, 11, 3]);
        assert!(queue.owners.is_empty());
    }

    /// Goal: owners that take turns share the permits evenly, even if one of them had all of its
    /// permits first.
    #[test]
    fn owners_share_slots_evenly() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 8, shared_max: 30 });
        let (one, other) = (owner(), owner());
        for _ in 0..1000 {
            queue.push(&one, 1);
        }
        let mut running: VecDeque<RunningJob> = begin_all(&mut queue).into();
        for _ in 0..1000 {
            queue.push(&other, 2);
        }
        for _ in 0..200 {
            running.extend(begin_all(&mut queue));
            queue.end(&running.pop_front().unwrap());
        }
        let counts: Vec<usize> = queue.owners.iter().map(|jobs| jobs.running).collect();
        assert!(counts.iter().all(|count| (10..=12).contains(count)), "{counts:?}");
    }

    /// Fault: of the maps of one owner, a short one waited for a slice of each long one. Goal: new
    /// jobs and rests of jobs take turns, whether they are urgent or not.
    #[test]
    fn new_jobs_and_rests_take_turns() {
        for is_urgent in [false, true] {
            let mut queue = JobQueue::new(RunningLimits { owners_max: 1, shared_max: 0 });
            let one = owner();
            let mut push = |rest: bool, job| {
                let number = queue.next_number();
                let number = if rest { continued(number) } else { number };
                queue.push_as(&one, number, is_urgent, job);
            };
            for (rest, job) in [(true, 10), (true, 11), (true, 12), (false, 1), (false, 2)] {
                push(rest, job);
            }
            let order = std::iter::from_fn(|| {
                let (permit, job) = queue.pop()?;
                queue.end(&permit?);
                Some(job)
            });
            assert_eq!(order.collect::<Vec<_>>(), [1, 10, 2, 11, 12]);
        }
    }

    /// Fault: prefetches counted as jobs of the server, so their owner had a second share of the
    /// threads.
    #[test]
    fn hints_are_few_and_count_for_their_owner() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 8, shared_max: 14 });
        let (one, other) = (owner(), owner());
        let taken = (0..100).filter(|_| queue.push_hint(&one, 1)).count();
        assert_eq!(taken, OWNER_WAITING_HINTS_MAX);
        assert!(queue.push_hint(&other, 2), "the limit is that of one owner");
        assert_eq!(begin_all(&mut queue).len(), HINTS_MAX, "the limit is that of all owners");
        for _ in 0..100 {
            queue.push(&one, 3);
        }
        let begun = begin_all(&mut queue).len();
        assert_eq!(HINTS_MAX + begun, 8, "as many as without hints");
    }

    /// Goal: an urgent job comes before the others of its owner, whether it became urgent before or
    /// after it was queued, and can be removed; turns of owners stay as they are.
    #[test]
    fn urgent_jobs_come_first() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 1, shared_max: 0 });
        let (one, other) = (owner(), owner());
        let numbers = [1, 2, 3, 4].map(|job| queue.push(&one, job));
        queue.push(&other, 10);
        queue.push(&other, 11);
        queue.promote(&one, numbers[3]);
        queue.promote(&one, numbers[2]);
        let number = queue.next_number();
        queue.push_as(&one, number, true, 5);
        assert_eq!(queue.remove(&one, numbers[3]), Some(4));
        assert_eq!(queue.waiting_owners().count(), 2);
        let mut order = Vec::new();
        while let Some((permit, job)) = queue.pop() {
            order.push(job);
            queue.end(&permit.unwrap());
        }
        assert_eq!(order, [3, 10, 5, 11, 1, 2]);
        assert!(queue.owners.is_empty());
    }

    /// Goal: of an owner that pauses, only urgent jobs run, and only within its permits; they keep
    /// the turns of the others.
    #[test]
    fn urgent_jobs_of_paused_owners_run() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 2, shared_max: 0 });
        let (one, other) = (owner(), owner());
        let numbers = [1, 2, 3].map(|job| queue.push(&one, job));
        queue.push(&other, 10);
        let pop = |queue: &mut JobQueue<u32>| {
            let popped = queue.pop_unless(|owner, is_urgent| !is_urgent && is_same(owner, &one));
            popped.map(|(permit, job)| (permit.unwrap(), job))
        };
        let (permit, job) = pop(&mut queue).unwrap();
        assert_eq!(job, 10);
        queue.end(&permit);
        assert!(pop(&mut queue).is_none(), "none is urgent");
        assert!(queue.promote(&one, numbers[1]) && !queue.promote(&one, numbers[1]));
        assert!(queue.promote(&one, numbers[2]));
        let (permit, job) = pop(&mut queue).unwrap();
        assert_eq!(job, 2);
        assert!(pop(&mut queue).is_none(), "the owner has one permit");
        queue.end(&permit);
        let (permit, job) = pop(&mut queue).unwrap();
        assert_eq!(job, 3);
        queue.end(&permit);
        assert!(pop(&mut queue).is_none() && queue.runnable() == 1, "the first one waits");
    }

    /// Goal: an owner's hints come after its other jobs, and the number of waiting hints stays
    /// within its limit.
    #[test]
    fn hints_come_last_and_are_bounded() {
        let mut queue = JobQueue::new(RunningLimits { owners_max: 1, shared_max: 0 });
        let one = owner();
        queue.push_hint(&one, 1);
        let number = queue.push(&one, 2);
        queue.push(&one, 3);
        assert_eq!(queue.remove(&one, number), Some(2));
        let (permit, job) = queue.pop().unwrap();
        assert_eq!(job, 3);
        queue.end(&permit.unwrap());
        let (permit, job) = queue.pop().unwrap();
        assert_eq!(job, 1);
        let owners: Vec<JobOwner> = (0..100).map(|_| owner()).collect();
        let hints = owners.iter().flat_map(|owner| std::iter::repeat_n(owner, 4));
        let taken = hints.filter(|owner| queue.push_hint(owner, 4)).count();
        assert_eq!(taken, WAITING_HINTS_MAX);
        queue.end(&permit.unwrap());
        assert_eq!(queue.len(), WAITING_HINTS_MAX);
    }
}

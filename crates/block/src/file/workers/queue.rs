//! The jobs that wait for a worker thread: owners take turns.

use crate::MemoryOwner;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The owner of a job, compared by identity; `None`: the server itself.
pub(super) type JobOwner = Option<Arc<MemoryOwner>>;

/// Jobs that wait, and the number of those that run, of one owner.
struct OwnerJobs<J> {
    owner: JobOwner,
    /// By their numbers, which is the order of arrival.
    waiting: BTreeMap<u64, J>,
    running: usize,
}

/// A queue from which owners take turns, job by job.
///
/// The threads are a few more than one owner gets: jobs that take long, or hang, keep only other
/// jobs of their owner waiting.
pub(super) struct JobQueue<J> {
    owner_running_max: usize,
    next_number: u64,
    waiting: usize,
    /// Jobs before all others, of nobody.
    first: VecDeque<J>,
    /// Those that have jobs, in the order of their turns.
    owners: VecDeque<OwnerJobs<J>>,
}

impl<J> JobQueue<J> {
    pub(super) fn new(owner_running_max: usize) -> Self {
        Self {
            owner_running_max,
            next_number: 0,
            waiting: 0,
            first: VecDeque::new(),
            owners: VecDeque::new(),
        }
    }

    /// How many jobs wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// How many jobs have come with a number.
    #[cfg(test)]
    pub(super) fn numbered(&self) -> u64 {
        self.next_number
    }

    /// Puts a job before all others; the threads of an owner are not counted for it.
    pub(super) fn push_first(&mut self, job: J) {
        self.first.push_front(job);
        self.waiting += 1;
    }

    /// Queues a job; returns the number under which it can be removed.
    pub(super) fn push(&mut self, owner: &JobOwner, job: J) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let at = self.position(owner).unwrap_or_else(|| {
            let (owner, waiting) = (owner.clone(), BTreeMap::new());
            self.owners.push_back(OwnerJobs { owner, waiting, running: 0 });
            self.owners.len() - 1
        });
        self.owners[at].waiting.insert(number, job);
        self.waiting += 1;
        number
    }

    /// Takes the next job that may run. [`end`](Self::end) has to follow for its owner.
    pub(super) fn pop(&mut self) -> Option<(Option<JobOwner>, J)> {
        if let Some(job) = self.first.pop_front() {
            self.waiting -= 1;
            return Some((None, job));
        }
        let may_run =
            |jobs: &OwnerJobs<J>| jobs.running < self.owner_running_max && !jobs.waiting.is_empty();
        let at = self.owners.iter().position(may_run)?;
        let mut jobs = self.owners.remove(at)?;
        let (_, job) = jobs.waiting.pop_first()?;
        self.waiting -= 1;
        jobs.running += 1;
        let owner = jobs.owner.clone();
        self.owners.push_back(jobs);
        Some((Some(owner), job))
    }

    /// Notes that a job of this owner has ended.
    pub(super) fn end(&mut self, owner: &JobOwner) {
        if let Some(at) = self.position(owner) {
            self.owners[at].running -= 1;
            self.forget_idle(at);
        }
    }

    /// Takes back a job that no thread has begun.
    pub(super) fn remove(&mut self, owner: &JobOwner, number: u64) -> Option<J> {
        let at = self.position(owner)?;
        let job = self.owners[at].waiting.remove(&number)?;
        self.waiting -= 1;
        self.forget_idle(at);
        Some(job)
    }

    fn forget_idle(&mut self, at: usize) {
        if self.owners[at].running == 0 && self.owners[at].waiting.is_empty() {
            self.owners.remove(at);
        }
    }

    fn position(&self, owner: &JobOwner) -> Option<usize> {
        self.owners.iter().position(|jobs| match (&jobs.owner, owner) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        })
    }
}

//! A job that waits in several queues in turn: for a permit, for a slot, and for a thread.

use super::computing::ComputingLimit;
use super::queue::JobOwner;
use super::slots::ComputingSlots;
use super::{Job, Shared};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A job whose result is awaited, and its numbers in the queues.
///
/// A job that is urgent comes before the others of its owner in each queue: jobs of other owners
/// wait for it, because it holds a permit or because its command has locked blocks.
#[derive(Default)]
pub(super) struct QueuedJob {
    is_urgent: AtomicBool,
    owner: JobOwner,
    permit: Option<(ComputingLimit, u64)>,
    slot: Option<(ComputingSlots, u64)>,
    thread: Option<(Arc<Shared>, u64)>,
}

impl QueuedJob {
    pub(super) fn new(
        owner: JobOwner,
        permit: Option<(ComputingLimit, u64)>,
        slot: Option<(ComputingSlots, u64)>,
        thread: (Arc<Shared>, u64),
    ) -> Self {
        Self { is_urgent: AtomicBool::new(false), owner, permit, slot, thread: Some(thread) }
    }

    pub(super) fn owner(&self) -> &JobOwner {
        &self.owner
    }

    pub(super) fn permit(&self) -> Option<&(ComputingLimit, u64)> {
        self.permit.as_ref()
    }

    pub(super) fn slot(&self) -> Option<&(ComputingSlots, u64)> {
        self.slot.as_ref()
    }

    /// Returns true if the job is urgent. A queue reads this under its lock when it adds the job.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(SeqCst)
    }

    /// Makes the job urgent, in the queue in which it is and in those it will be in.
    pub(super) fn promote(&self) {
        if self.is_urgent.swap(true, SeqCst) {
            return;
        }
        if let Some((permits, number)) = &self.permit {
            permits.promote(&self.owner, *number);
        }
        if let Some((slots, number)) = &self.slot {
            slots.promote(&self.owner, *number);
        }
        if let Some((shared, number)) = &self.thread {
            shared.lock().jobs.promote(&self.owner, *number);
        }
    }

    /// Queues the job for a thread.
    pub(super) fn submit(&self, job: Job) {
        if let Some((shared, number)) = &self.thread {
            let push = |jobs: &mut super::JobQueue<Job>| {
                jobs.push_as(&self.owner, *number, self.is_urgent(), job);
            };
            shared.submit(push);
        }
    }

    /// Removes the job from the queue in which it is, unless a thread has begun it. The job is
    /// dropped without the queue's lock: dropping it releases its permit and its memory, which may
    /// take other locks.
    pub(super) fn remove(&self) {
        if let Some((permits, number)) = &self.permit {
            drop(permits.remove(&self.owner, *number));
        }
        if let Some((slots, number)) = &self.slot {
            drop(slots.remove(&self.owner, *number));
        }
        if let Some((shared, number)) = &self.thread {
            let removed = shared.lock().jobs.remove(&self.owner, *number);
            drop(removed);
        }
    }
}

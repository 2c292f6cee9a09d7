//! A limit for jobs that compute in the kernel.
//!
//! A pool has many threads because most of its jobs wait for a disk. Of jobs that compute, as many
//! would have most of the processor: the thread of a core is one among them.

use super::queue::{JobOwner, JobQueue, RunningLimits, RunningPlace};
use crate::IoContext;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A job that has a permit for longer waits for its disk, and is not counted any more when the next
/// job comes or ends.
const COMPUTING_MAX: Duration = Duration::from_secs(1);

/// The limit is [`State::jobs_max`].
const UNLIMITED: RunningLimits = RunningLimits { owners_max: usize::MAX, shared_max: usize::MAX };

/// How many jobs compute at a time; their owners take turns.
#[derive(Clone)]
pub(in crate::file) struct ComputingLimit(Arc<Mutex<State>>);

struct State {
    jobs_max: usize,
    waiting: JobQueue<Grant>,
    next_id: u64,
    granted: Vec<Granted>,
}

/// A permit that is in use.
struct Granted {
    id: u64,
    since: Instant,
    place: Option<RunningPlace>,
}

struct Grant {
    id: u64,
    sender: oneshot::Sender<()>,
}

/// A place among the jobs that compute; to be kept until the job has ended.
pub(in crate::file) struct ComputingPermit {
    limit: ComputingLimit,
    owner: JobOwner,
    number: u64,
    id: u64,
}

impl ComputingLimit {
    pub(in crate::file) fn new(jobs_max: usize) -> Self {
        // The limit is for all: that one owner has all permits keeps the others waiting for one
        // job.
        let waiting = JobQueue::new(UNLIMITED);
        Self(Arc::new(Mutex::new(State { jobs_max, waiting, next_id: 0, granted: Vec::new() })))
    }

    /// Waits until a job of this owner ([`IoContext`]) may compute. It may be cancelled meanwhile.
    pub(in crate::file) async fn permit(&self) -> ComputingPermit {
        if let Some(context) = IoContext::current() {
            context.allow_cancel();
        }
        let (permit, granted) = self.queue();
        let _ = granted.await; // dropped meanwhile, the permit leaves the queue
        permit
    }

    fn queue(&self) -> (ComputingPermit, oneshot::Receiver<()>) {
        let owner = IoContext::current().map(|context| Arc::clone(context.owner()));
        let (sender, granted) = oneshot::channel();
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let number = state.waiting.push(&owner, Grant { id, sender });
        state.grant();
        drop(state);
        (ComputingPermit { limit: self.clone(), owner, number, id }, granted)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Grants permits as long as there are some.
    fn grant(&mut self) {
        let now = Instant::now();
        let computes = |granted: &&Granted| now.duration_since(granted.since) < COMPUTING_MAX;
        let mut computing = self.granted.iter().filter(computes).count();
        while computing < self.jobs_max
            && let Some((place, grant)) = self.waiting.pop()
        {
            self.granted.push(Granted { id: grant.id, since: now, place });
            computing += 1;
            // Whoever has stopped waiting drops the permit.
            let _ = grant.sender.send(());
        }
    }
}

impl Drop for ComputingPermit {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        if state.waiting.remove(&self.owner, self.number).is_none()
            && let Some(at) = state.granted.iter().position(|granted| granted.id == self.id)
            && let Some(place) = state.granted.swap_remove(at).place
        {
            state.waiting.end(&place);
        }
        state.grant();
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
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    type Waiting = BoxFuture<'static, ComputingPermit>;

    /// Queues for a permit of this owner.
    fn queue(limit: &ComputingLimit, owner: &Arc<crate::MemoryOwner>) -> Waiting {
        let (limit, context) = (limit.clone(), IoContext::new(owner));
        let queued = async move { limit.queue() };
        let (permit, granted) = context.scope(queued).now_or_never().unwrap();
        async move {
            let _ = granted.await;
            permit
        }
        .boxed()
    }

    fn now(waiting: &mut Waiting) -> Option<ComputingPermit> {
        waiting.now_or_never()
    }

    /// Goal: no more jobs compute than may, owners take turns, and what is dropped, waiting or
    /// granted, leaves its place to the next.
    #[test]
    fn owners_take_turns_and_nothing_is_lost() {
        let limit = ComputingLimit::new(2);
        let (one, other) = (Arc::default(), Arc::default());
        let first = now(&mut queue(&limit, &one)).unwrap();
        let second = now(&mut queue(&limit, &one)).unwrap();
        let mut waiting: Vec<_> = (0..4).map(|_| queue(&limit, &one)).collect();
        let mut late = queue(&limit, &other);
        assert!(waiting.iter_mut().chain([&mut late]).all(|waiting| now(waiting).is_none()));
        drop(waiting.remove(0));
        drop((first, second));
        let (of_one, of_other) = (now(&mut waiting[0]).unwrap(), now(&mut late).unwrap());
        assert!(now(&mut waiting[1]).is_none(), "the other owner comes between");
        drop((of_one, of_other));
        // Granted, and dropped before that was seen.
        drop(waiting);
        assert!(limit.state().granted.is_empty());
    }

    /// Goal: jobs that wait for a disk that hangs keep nobody from others.
    #[test]
    fn a_job_that_hangs_is_not_counted() {
        let limit = ComputingLimit::new(1);
        let owner = Arc::default();
        let hangs = now(&mut queue(&limit, &owner)).unwrap();
        let mut waits = queue(&limit, &owner);
        assert!(now(&mut waits).is_none());
        limit.state().granted[0].since -= COMPUTING_MAX;
        let mut next = queue(&limit, &owner);
        let granted = now(&mut waits).unwrap();
        assert!(now(&mut next).is_none(), "one takes the place of the other");
        drop(granted);
        drop(now(&mut next).unwrap());
        drop(hangs);
        assert!(limit.state().granted.is_empty());
    }
}

//! A mutex for which owners take turns.

use block::MemoryOwner;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A mutex that goes round by owner: one that asks often waits for itself, not the others for it.
/// Those of one owner are served in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct FairMutex {
    queue: Mutex<WaitQueue>,
}

#[derive(Debug, Default)]
struct WaitQueue {
    is_held: bool,
    next_number: u64,
    /// Owners that wait, in order of their turns.
    owners: VecDeque<OwnerWaiters>,
}

/// Those of one owner that wait, by their numbers.
#[derive(Debug)]
struct OwnerWaiters {
    owner: Arc<MemoryOwner>,
    waiters: BTreeMap<u64, oneshot::Sender<FairGuard>>,
}

/// The mutex is held while this lives.
#[derive(Debug)]
pub(crate) struct FairGuard {
    /// `None`: it was handed on.
    mutex: Option<Arc<FairMutex>>,
}

/// A place in the queue, given up when dropped.
struct Waiting<'a> {
    mutex: &'a FairMutex,
    owner: &'a Arc<MemoryOwner>,
    number: u64,
}

impl FairMutex {
    /// Holds the mutex as soon as it is the turn of this waiter.
    pub(crate) async fn lock(self: &Arc<Self>, owner: &Arc<MemoryOwner>) -> FairGuard {
        let (_waiting, granted) = {
            let mut queue = self.queue();
            if !std::mem::replace(&mut queue.is_held, true) {
                return FairGuard { mutex: Some(Arc::clone(self)) };
            }
            let (grant, granted) = oneshot::channel();
            let number = queue.wait(owner, grant);
            (Waiting { mutex: self, owner, number }, granted)
        };
        match granted.await {
            Ok(guard) => guard,
            // A sender is only dropped by its own `Waiting`.
            Err(_) => std::future::pending().await,
        }
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue().owners.iter().map(|owner| owner.waiters.len()).sum()
    }

    fn queue(&self) -> MutexGuard<'_, WaitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitQueue {
    fn wait(&mut self, owner: &Arc<MemoryOwner>, grant: oneshot::Sender<FairGuard>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        match self.owners.iter_mut().find(|waits| Arc::ptr_eq(&waits.owner, owner)) {
            Some(waits) => drop(waits.waiters.insert(number, grant)),
            None => {
                let waiters = BTreeMap::from([(number, grant)]);
                self.owners.push_back(OwnerWaiters { owner: Arc::clone(owner), waiters });
            }
        }
        number
    }

    /// The next in turn; its owner goes to the end.
    fn next(&mut self) -> Option<oneshot::Sender<FairGuard>> {
        let mut first = self.owners.pop_front()?;
        let (_, grant) = first.waiters.pop_first()?;
        if !first.waiters.is_empty() {
            self.owners.push_back(first);
        }
        Some(grant)
    }

    fn remove(&mut self, owner: &Arc<MemoryOwner>, number: u64) {
        let Some(at) = self.owners.iter().position(|waits| Arc::ptr_eq(&waits.owner, owner)) else {
            return;
        };
        self.owners[at].waiters.remove(&number);
        if self.owners[at].waiters.is_empty() {
            self.owners.remove(at);
        }
    }
}

impl Drop for FairGuard {
    fn drop(&mut self) {
        let Some(mutex) = self.mutex.take() else { return };
        loop {
            let next = {
                let mut queue = mutex.queue();
                let next = queue.next();
                queue.is_held = next.is_some();
                next
            };
            let Some(grant) = next else { return };
            match grant.send(Self { mutex: Some(Arc::clone(&mutex)) }) {
                Ok(()) => return,
                // It is gone: the next one.
                Err(mut back) => back.mutex = None,
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.mutex.queue().remove(self.owner, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Fault: changes of the reservations waited in one queue, so that one initiator that sent
    /// many kept everybody from registering and from fencing, for seconds.
    #[test]
    fn owners_take_turns() {
        let (mutex, one, other) = (Arc::new(FairMutex::default()), Arc::default(), Arc::default());
        let held = mutex.lock(&one).now_or_never().unwrap();
        let mut many: Vec<_> = (0..5).map(|_| Box::pin(mutex.lock(&one))).collect();
        assert!(many.iter_mut().all(|lock| lock.now_or_never().is_none()));
        let mut late = Box::pin(mutex.lock(&other));
        assert!((&mut late).now_or_never().is_none());
        drop(held);
        let held = (&mut many[0]).now_or_never().unwrap();
        assert!((&mut late).now_or_never().is_none());
        drop(held);
        let held = (&mut late).now_or_never().unwrap();
        assert!((&mut many[1]).now_or_never().is_none());
        drop(held);
        assert!((&mut many[1]).now_or_never().is_some(), "those of one owner in their order");
        assert!((&mut many[2]).now_or_never().is_some());
    }

    /// Waiters that go away leave nothing, and lose no turn, also if it was theirs already.
    #[test]
    fn waiters_may_go() {
        let (mutex, owner) = (Arc::new(FairMutex::default()), Arc::default());
        let held = mutex.lock(&owner).now_or_never().unwrap();
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(mutex.lock(&owner))).collect();
        assert!(waits.iter_mut().all(|lock| lock.now_or_never().is_none()));
        drop(waits.remove(1));
        assert_eq!(mutex.waiting(), 2);
        drop(held);
        drop(waits.remove(0)); // it was granted, and never looked
        assert!((&mut waits[0]).now_or_never().is_some());
        drop(waits);
        assert_eq!(mutex.waiting(), 0);
        assert!(mutex.lock(&owner).now_or_never().is_some());
    }
}

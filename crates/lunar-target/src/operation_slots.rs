//! Limit of the long operations of an owner that work at the same time.
//!
//! One command of a few bytes begins an operation that may last for hours, and an owner may begin
//! one at each unit. Further ones wait, in the order in which they were requested.

use lunar_net::OwnerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of operations of an owner that work at the same time: enough to keep several disks busy.
pub(crate) const OPERATIONS_MAX: usize = 4;

/// The slots of a server's owners.
#[derive(Debug, Default)]
pub(crate) struct OperationSlots {
    /// One entry for each owner with operations, and some for earlier ones.
    owners: Mutex<HashMap<u64, Weak<Semaphore>>>,
}

/// The slot of an operation that works; given back on drop.
#[derive(Debug)]
pub(crate) struct OperationSlot {
    _permit: Option<OwnedSemaphorePermit>,
}

impl OperationSlots {
    /// Waits for a slot of an owner.
    pub(crate) async fn take(&self, owner: OwnerId) -> OperationSlot {
        // The semaphore is never closed.
        OperationSlot { _permit: self.of(owner).acquire_owned().await.ok() }
    }

    fn of(&self, owner: OwnerId) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = owners.get(&owner.0).and_then(Weak::upgrade) {
            return slots;
        }
        owners.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Semaphore::new(OPERATIONS_MAX));
        owners.insert(owner.0, Arc::downgrade(&slots));
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Goal: an owner has a limited number of slots, which pass on in order; those of another owner
    /// are its own, and an owner without operations leaves no entry for long.
    #[test]
    fn slots_are_for_each_owner() {
        let slots = OperationSlots::default();
        let mut taken = Vec::new();
        for _ in 0..OPERATIONS_MAX {
            let Poll::Ready(slot) = poll(pin!(slots.take(OwnerId(1)))) else { panic!("a slot") };
            taken.push(slot);
        }
        let mut first = pin!(slots.take(OwnerId(1)));
        let mut second = pin!(slots.take(OwnerId(1)));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        let other = poll(pin!(slots.take(OwnerId(2))));
        assert!(other.is_ready(), "the slots of another owner");
        taken.pop();
        assert!(poll(second.as_mut()).is_pending() && poll(first.as_mut()).is_ready());
        drop(other);
        drop(slots.of(OwnerId(3)));
        assert_eq!(slots.owners.lock().unwrap().len(), 2, "owners 1 and 3");
    }
}

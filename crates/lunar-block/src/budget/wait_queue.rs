//! Requests that wait for memory, in ascending order of what their owners would then hold.

use super::{Grant, MemoryOwner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::oneshot::Sender;

/// Number of owners whose position one release updates, in turn.
const RENEWED_OWNERS: usize = 16;

/// Waiting requests by owner. The position of an owner is given by the bytes that it holds plus its
/// smallest request. Held bytes change without the queue, so positions are updated a few at a time.
#[derive(Default)]
pub(super) struct WaitQueue {
    next_sequence: u64,
    by_owner: BTreeMap<OwnerAddress, OwnerRequests>,
    order: BTreeSet<(QueueKey, OwnerAddress)>,
    /// The owner whose position was updated last by [`WaitQueue::renew_some`].
    renewed: OwnerAddress,
}

/// The address of an owner; the queue keeps the owner alive.
type OwnerAddress = usize;

/// The needed bytes, and the sequence number of the request that needs them.
type QueueKey = (usize, u64);

struct OwnerRequests {
    owner: Arc<MemoryOwner>,
    position: QueueKey,
    /// Requests by length and sequence number.
    requests: BTreeMap<(usize, u64), Sender<Grant>>,
}

/// Identifies a request in the queue.
#[derive(Clone, Copy)]
pub(super) struct RequestId {
    owner: OwnerAddress,
    bytes: usize,
    sequence: u64,
}

/// The request that is served next.
pub(super) struct FirstRequest<'a> {
    pub(super) owner: &'a Arc<MemoryOwner>,
    pub(super) bytes: usize,
}

impl OwnerRequests {
    /// Returns the owner's current position in the order; `None` if it has no request.
    fn current_position(&self) -> Option<QueueKey> {
        let (bytes, sequence) = *self.requests.keys().next()?;
        Some((self.owner.held_bytes().saturating_add(bytes), sequence))
    }
}

impl WaitQueue {
    pub(super) fn push(
        &mut self,
        owner: &Arc<MemoryOwner>,
        bytes: usize,
        grant: Sender<Grant>,
    ) -> RequestId {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let address = Arc::as_ptr(owner).addr();
        let requests = self.by_owner.entry(address).or_insert_with(|| OwnerRequests {
            owner: Arc::clone(owner),
            position: (0, sequence),
            requests: BTreeMap::new(),
        });
        requests.requests.insert((bytes, sequence), grant);
        self.renew(address);
        RequestId { owner: address, bytes, sequence }
    }

    /// Returns the bytes that the owner of the first request would hold with it.
    pub(super) fn least_needed(&self) -> Option<usize> {
        self.order.first().map(|((needed, _), _)| *needed)
    }

    pub(super) fn first(&self) -> Option<FirstRequest<'_>> {
        let (_, address) = self.order.first()?;
        let requests = self.by_owner.get(address)?;
        let (bytes, _) = *requests.requests.keys().next()?;
        Some(FirstRequest { owner: &requests.owner, bytes })
    }

    pub(super) fn pop_first(&mut self) -> Option<Sender<Grant>> {
        let (_, address) = *self.order.first()?;
        let (_, grant) = self.by_owner.get_mut(&address)?.requests.pop_first()?;
        self.renew(address);
        Some(grant)
    }

    /// Removes a request; returns `false` if it is no longer in the queue.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        let Some(requests) = self.by_owner.get_mut(&id.owner) else { return false };
        let removed = requests.requests.remove(&(id.bytes, id.sequence)).is_some();
        if removed {
            self.renew(id.owner);
        }
        removed
    }

    /// Updates the position of the first owner. Returns true when the owner moved back.
    pub(super) fn renew_first(&mut self) -> bool {
        let Some((position, address)) = self.order.first().copied() else { return false };
        self.renew(address);
        self.by_owner.get(&address).is_some_and(|requests| requests.position > position)
    }

    /// Updates the positions of some owners: an owner that has given memory back moves forward.
    pub(super) fn renew_some(&mut self) {
        let after = self.by_owner.range(self.renewed.saturating_add(1)..);
        let some = after.chain(self.by_owner.iter()).map(|(address, _)| *address);
        let some: Vec<_> = some.take(RENEWED_OWNERS.min(self.by_owner.len())).collect();
        self.renewed = some.last().copied().unwrap_or_default();
        for address in some {
            self.renew(address);
        }
    }

    fn renew(&mut self, address: OwnerAddress) {
        let Some(requests) = self.by_owner.get_mut(&address) else { return };
        let position = requests.current_position();
        if position == Some(requests.position) && self.order.contains(&(requests.position, address))
        {
            return;
        }
        self.order.remove(&(requests.position, address));
        match position {
            Some(position) => {
                requests.position = position;
                self.order.insert((position, address));
            }
            None => {
                self.by_owner.remove(&address);
            }
        }
    }
}

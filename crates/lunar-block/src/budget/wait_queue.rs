//! Requests that wait for memory, in the order of what their owners would hold with them.

use super::{Grant, MemoryOwner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::oneshot::Sender;

/// Owners whose place one release renews, in turn.
const RENEWED_OWNERS: usize = 16;

/// Requests that wait, by owner. An owner stands where its smallest request puts it: at the bytes
/// that it holds and that request together. What owners hold changes without the queue; places are
/// renewed a few at a time.
#[derive(Default)]
pub(super) struct WaitQueue {
    next_sequence: u64,
    by_owner: BTreeMap<OwnerAddress, OwnerRequests>,
    order: BTreeSet<(QueueKey, OwnerAddress)>,
    /// The owner whose place was renewed last in turn.
    renewed: OwnerAddress,
}

/// The address of an owner, which the queue keeps alive.
type OwnerAddress = usize;

/// Needed bytes, and the sequence number of the request that needs them.
type QueueKey = (usize, u64);

struct OwnerRequests {
    owner: Arc<MemoryOwner>,
    place: QueueKey,
    /// By length and sequence number.
    requests: BTreeMap<(usize, u64), Sender<Grant>>,
}

/// Which request an entry of the queue is.
#[derive(Clone, Copy)]
pub(super) struct RequestId {
    owner: OwnerAddress,
    bytes: usize,
    sequence: u64,
}

/// The request that is next.
pub(super) struct FirstRequest<'a> {
    pub(super) owner: &'a Arc<MemoryOwner>,
    pub(super) bytes: usize,
}

impl OwnerRequests {
    /// The owner's present place in the order; `None`: it has no request.
    fn place_now(&self) -> Option<QueueKey> {
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
            place: (0, sequence),
            requests: BTreeMap::new(),
        });
        requests.requests.insert((bytes, sequence), grant);
        self.renew(address);
        RequestId { owner: address, bytes, sequence }
    }

    /// Bytes that the owner of the next request needs to hold.
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

    /// `false`: it is not there any more.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        let Some(requests) = self.by_owner.get_mut(&id.owner) else { return false };
        let removed = requests.requests.remove(&(id.bytes, id.sequence)).is_some();
        if removed {
            self.renew(id.owner);
        }
        removed
    }

    /// Puts the first owner where it belongs now. `false`: that is no later than where it was.
    pub(super) fn renew_first(&mut self) -> bool {
        let Some((place, address)) = self.order.first().copied() else { return false };
        self.renew(address);
        self.by_owner.get(&address).is_some_and(|requests| requests.place > place)
    }

    /// Puts some owners where they belong now: one that has given memory back comes forward.
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
        let place = requests.place_now();
        if place == Some(requests.place) && self.order.contains(&(requests.place, address)) {
            return;
        }
        self.order.remove(&(requests.place, address));
        match place {
            Some(place) => {
                requests.place = place;
                self.order.insert((place, address));
            }
            None => {
                self.by_owner.remove(&address);
            }
        }
    }
}

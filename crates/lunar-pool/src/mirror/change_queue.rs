//! The order of overlapping changes, and the turns of their owners.

mod range_order;

use futures_util::poll;
use lunar_block::{BlockRange, IoContext, MemoryOwner};
use range_order::{RangeGranted, RangeId, RangeOrder};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// The changes of several copies that have not ended, such as those of a mirror. All copies get
/// overlapping changes in the same order; other changes run side by side.
///
/// A change waits for the earlier overlapping ones of its own owner, and then in the common order
/// for those that came there before it. There each owner has at most one change of a block.
/// Therefore a change waits for one change of each other owner, or for several that run together,
/// however many these owners have; and no change goes before one that is in the common order, so
/// none waits for ever, however long it is. Changes of no owner, such as those of a pool itself,
/// have one together.
#[derive(Debug, Default)]
pub struct ChangeQueue {
    /// Number of changes in the common order, checked without the lock.
    count: AtomicUsize,
    orders: Mutex<ChangeOrders>,
}

#[derive(Debug, Default)]
struct ChangeOrders {
    /// The owners that have changes.
    owners: HashMap<OwnerAddress, OwnerChanges>,
    /// Changes that have started, and those that wait for them.
    common: RangeOrder,
}

/// The address of an owner, which the queue keeps alive; 0 for the pool itself.
type OwnerAddress = usize;

#[derive(Debug)]
struct OwnerChanges {
    order: RangeOrder,
    _owner: Option<Arc<MemoryOwner>>,
}

/// A change whose turn has come. The next changes have theirs when this value is dropped.
#[derive(Debug)]
pub struct ChangeTurn {
    // Dropped first: changes of other owners come before the next one of this owner.
    _common: OrderPlace,
    _own: OrderPlace,
}

/// The turn of a change of a transfer.
#[derive(Debug)]
pub struct TransferTurn {
    pub(super) turn: ChangeTurn,
    /// The context of the transfer, if it was marked as begun.
    begun: Option<Arc<IoContext>>,
}

impl Drop for TransferTurn {
    fn drop(&mut self) {
        if let Some(context) = &self.begun {
            context.end();
        }
    }
}

/// The place of a change in an order, which it leaves when this value is dropped.
#[derive(Debug)]
struct OrderPlace {
    queue: Arc<ChangeQueue>,
    /// The owner whose order this is; `None` for the common one.
    owner: Option<OwnerAddress>,
    id: RangeId,
}

impl ChangeQueue {
    /// Enters the order of the current owner at once, and waits for the turn of the change.
    pub async fn enter(queue: &Arc<Self>, range: BlockRange) -> ChangeTurn {
        let owner = IoContext::current().map(|context| Arc::clone(context.owner()));
        let (own, granted) = Self::enter_own(queue, owner, range);
        wait(granted).await;
        let (common, granted) = Self::enter_common(queue, range);
        wait(granted).await;
        ChangeTurn { _common: common, _own: own }
    }

    /// Enters as [`enter`](Self::enter) for a change of the current transfer, which can be
    /// cancelled while it waits. Returns `None` if it was.
    pub async fn enter_transfer(queue: &Arc<Self>, range: BlockRange) -> Option<TransferTurn> {
        let context = IoContext::current();
        let mut entering = pin!(Self::enter(queue, range));
        if let Poll::Ready(turn) = poll!(&mut entering) {
            return Some(TransferTurn { turn, begun: None });
        }
        if let Some(context) = &context {
            context.allow_cancel();
        }
        let turn = entering.await;
        match &context {
            Some(context) if !context.begin() => None,
            _ => Some(TransferTurn { turn, begun: context }),
        }
    }

    fn enter_own(
        queue: &Arc<Self>,
        owner: Option<Arc<MemoryOwner>>,
        range: BlockRange,
    ) -> (OrderPlace, Option<RangeGranted>) {
        let address = owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner).addr());
        let mut orders = queue.orders();
        let new = || OwnerChanges { order: RangeOrder::default(), _owner: owner };
        let changes = orders.owners.entry(address).or_insert_with(new);
        let (id, granted) = changes.order.enter(range);
        (OrderPlace { queue: Arc::clone(queue), owner: Some(address), id }, granted)
    }

    fn enter_common(queue: &Arc<Self>, range: BlockRange) -> (OrderPlace, Option<RangeGranted>) {
        let mut orders = queue.orders();
        let (id, granted) = orders.common.enter(range);
        queue.count.store(orders.common.len(), SeqCst);
        (OrderPlace { queue: Arc::clone(queue), owner: None, id }, granted)
    }

    /// True if a change of blocks of `range` has started, or will when others have ended.
    #[inline]
    pub(super) fn overlaps(&self, range: BlockRange) -> bool {
        self.count.load(SeqCst) > 0 && self.orders().common.overlaps(range)
    }

    /// Waits until the changes have ended because of which [`overlaps`](Self::overlaps) is true
    /// now.
    pub(super) async fn wait_for_overlapping(&self, range: BlockRange) {
        let ended = self.orders().common.watch(range);
        wait(ended).await;
    }

    fn orders(&self) -> MutexGuard<'_, ChangeOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OrderPlace {
    fn drop(&mut self) {
        let mut orders = self.queue.orders();
        let grants = match self.owner {
            None => {
                let grants = orders.common.leave(self.id);
                self.queue.count.store(orders.common.len(), SeqCst);
                grants
            }
            Some(address) => {
                let Some(changes) = orders.owners.get_mut(&address) else { return };
                let grants = changes.order.leave(self.id);
                if changes.order.len() == 0 {
                    orders.owners.remove(&address);
                }
                grants
            }
        };
        drop(orders);
        for grant in grants {
            let _ = grant.send(()); // a waiter that is gone leaves its place itself
        }
    }
}

async fn wait(granted: Option<RangeGranted>) {
    if let Some(granted) = granted {
        let _ = granted.await; // the sender is dropped only after it was used
    }
}

#[cfg(test)]
mod tests;

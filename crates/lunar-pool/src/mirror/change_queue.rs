//! The order of overlapping changes, and the turns of their owners.

mod range_order;

use futures_util::poll;
use lunar_block::{BlockRange, IoContext, MemoryOwner};
use range_order::{RangeGranted, RangeId, RangeOrder};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst};
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
    /// Number of changes that have started, checked without the lock.
    count: AtomicUsize,
    /// The copy from which blocks are read during changes that start from now on.
    source: AtomicU16,
    orders: Mutex<ChangeOrders>,
}

#[derive(Debug, Default)]
struct ChangeOrders {
    /// The owners that have changes.
    owners: HashMap<OwnerAddress, OwnerChanges>,
    /// An empty order for the next owner: it keeps its memory.
    idle: RangeOrder,
    /// Changes that have started, and those that wait for them.
    common: RangeOrder,
    /// Changes that have started, by their first block. No two of them overlap.
    started: BTreeMap<u64, StartedChange>,
}

#[derive(Clone, Copy, Debug)]
struct StartedChange {
    /// The first block behind it.
    end: u64,
    source: u16,
}

/// The copies from which blocks may be read while changes of them are in progress: one that has
/// new data may be the only one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ChangeSource {
    /// Any copy: no change is in progress.
    Any,
    /// Only this copy.
    Only(u16),
    /// None that has the newest data of all blocks for certain.
    Unknown,
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
    queue: Arc<ChangeQueue>,
    range: BlockRange,
    owner: OwnerAddress,
    /// The position of the change in the order of its owner, once it has entered there.
    own: Option<RangeId>,
    /// Its position in the common order, once it has entered there.
    common: Option<RangeId>,
    is_started: bool,
}

impl ChangeTurn {
    /// Enters the orders whose turn has come. Returns a receiver if the change has to wait there.
    fn advance(&mut self, owner: Option<&Arc<MemoryOwner>>) -> Option<RangeGranted> {
        let mut orders = self.queue.orders();
        let orders = &mut *orders;
        if self.own.is_none() {
            let idle = &mut orders.idle;
            let new = || OwnerChanges { order: take(idle), _owner: owner.cloned() };
            let changes = orders.owners.entry(self.owner).or_insert_with(new);
            let (id, granted) = changes.order.enter(self.range);
            self.own = Some(id);
            if granted.is_some() {
                return granted;
            }
        }
        if self.common.is_none() {
            let (id, granted) = orders.common.enter(self.range);
            self.common = Some(id);
            if granted.is_some() {
                return granted;
            }
        }
        let (end, source) = (self.range.lba + self.range.count, self.queue.source.load(SeqCst));
        orders.started.insert(self.range.lba, StartedChange { end, source });
        self.queue.count.store(orders.started.len(), SeqCst);
        self.is_started = true;
        None
    }
}

impl Drop for ChangeTurn {
    fn drop(&mut self) {
        let mut guard = self.queue.orders();
        let orders = &mut *guard;
        if self.is_started {
            orders.started.remove(&self.range.lba);
            self.queue.count.store(orders.started.len(), SeqCst);
        }
        // Changes of other owners come before the next one of this owner.
        let mut grants = self.common.map_or_else(Vec::new, |id| orders.common.leave(id));
        if let (Some(id), Entry::Occupied(mut changes)) =
            (self.own, orders.owners.entry(self.owner))
        {
            grants.extend(changes.get_mut().order.leave(id));
            if changes.get().order.len() == 0 {
                orders.idle = changes.remove().order;
            }
        }
        drop(guard);
        for grant in grants {
            let _ = grant.send(()); // a waiter that is gone removes itself
        }
    }
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

impl ChangeQueue {
    /// Enters the order of the current owner at once, and waits for the turn of the change.
    pub async fn enter(queue: &Arc<Self>, range: BlockRange) -> ChangeTurn {
        let owner = IoContext::current().map(|context| Arc::clone(context.owner()));
        let mut turn = ChangeTurn {
            queue: Arc::clone(queue),
            range,
            owner: owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner).addr()),
            own: None,
            common: None,
            is_started: false,
        };
        while let Some(granted) = turn.advance(owner.as_ref()) {
            let _ = granted.await; // the sender is dropped only after it was used
        }
        turn
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

    /// Returns the copies from which blocks of `range` may be read now.
    #[inline]
    pub(super) fn source_of(&self, range: BlockRange) -> ChangeSource {
        if self.count.load(SeqCst) == 0 {
            return ChangeSource::Any;
        }
        let orders = self.orders();
        let before = orders.started.range(..range.lba).next_back();
        let before = before.filter(|(_, change)| change.end > range.lba);
        let within = orders.started.range(range.lba..range.lba + range.count);
        let mut sources = before.into_iter().chain(within).map(|(_, change)| change.source);
        match sources.next() {
            None => ChangeSource::Any,
            Some(one) if sources.all(|source| source == one) => ChangeSource::Only(one),
            Some(_) => ChangeSource::Unknown,
        }
    }

    /// Sets the copy from which blocks are read during changes that start from now on.
    pub(super) fn set_source(&self, source: u16) {
        self.source.store(source, SeqCst);
    }

    /// Returns the copy that [`set_source`](Self::set_source) has set; the first one otherwise.
    pub(super) fn source(&self) -> u16 {
        self.source.load(SeqCst)
    }

    /// Waits until the changes of blocks of `range` have ended that are in the common order now.
    /// Later ones do not wait for it.
    pub async fn wait_for_overlapping(&self, range: BlockRange) {
        let ended = self.orders().common.watch(range);
        if let Some(ended) = ended {
            let _ = ended.await; // the sender is dropped only after it was used
        }
    }

    fn orders(&self) -> MutexGuard<'_, ChangeOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

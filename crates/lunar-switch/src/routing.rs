//! The present extents of a virtual disk, and the exchange of them.

use crate::migration::MigrationState;
use arc_swap::ArcSwap;
use lunar_block::{BlockDevice, BlockRange};
use lunar_pool::{JoinedDevice, JoinedShape};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The extents of a virtual disk. Each transfer holds the value that it began with: an extent that
/// was moved is in use until all transfers with its source have ended.
#[derive(Debug)]
pub struct Routing {
    pub(crate) joined: Arc<JoinedDevice>,
    /// Set while an extent is being moved.
    pub(crate) migration: Option<Arc<MigrationState>>,
    /// Dropped with the last holder.
    _held: watch::Sender<()>,
    /// Dropped with the last holder and the last relayed READ.
    held_by_reads: Arc<watch::Sender<()>>,
}

impl Routing {
    fn new(
        joined: Arc<JoinedDevice>,
        migration: Option<Arc<MigrationState>>,
    ) -> (Self, RoutingUse) {
        let ((held, transfers), (held_by_reads, all)) = (watch::channel(()), watch::channel(()));
        let held_by_reads = Arc::new(held_by_reads);
        (Self { joined, migration, _held: held, held_by_reads }, RoutingUse { transfers, all })
    }

    /// Returns the value that a relayed transfer keeps until its end.
    pub(crate) fn held_by_relay(self: &Arc<Self>, is_write: bool) -> Arc<dyn Any + Send + Sync> {
        if is_write {
            Arc::<Self>::clone(self)
        } else {
            Arc::<watch::Sender<()>>::clone(&self.held_by_reads)
        }
    }

    /// Returns the extents, and the translation of blocks to them.
    pub fn shape(&self) -> &JoinedShape {
        self.joined.shape()
    }

    /// True if an extent is being moved: changes of its blocks go to two devices.
    pub fn is_migrating(&self) -> bool {
        self.migration.is_some()
    }

    /// Records a transfer of a host: a copy makes room for it.
    pub(crate) fn count_transfer(&self) {
        if let Some(migration) = &self.migration {
            migration.count_transfer();
        }
    }

    /// Returns the migration if it moves blocks of `range`, and these blocks of its extent.
    pub(crate) fn migration_of(
        &self,
        range: BlockRange,
    ) -> Option<(&Arc<MigrationState>, BlockRange)> {
        let migration = self.migration.as_ref()?;
        self.joined.geometry().byte_range(range)?;
        let part = self.joined.part_of_extent(migration.extent_index(), range);
        (part.count > 0).then_some((migration, part))
    }
}

/// The use of a routing, until its senders are dropped.
#[derive(Clone, Debug)]
struct RoutingUse {
    /// All transfers but relayed READs.
    transfers: watch::Receiver<()>,
    /// All transfers.
    all: watch::Receiver<()>,
}

/// The end of all transfers with former routings.
#[derive(Debug)]
pub(crate) struct RoutingReleased {
    /// The routings that are in use, in their order.
    former: Vec<RoutingUse>,
}

impl RoutingReleased {
    /// Waits for all transfers but relayed READs, which change nothing.
    pub(crate) async fn wait_for_changes(self) {
        for used in self.former {
            dropped(used.transfers).await;
        }
    }

    /// Waits for the transfers with the last of the routings.
    pub(crate) async fn wait_for_last(mut self) {
        if let Some(used) = self.former.pop() {
            dropped(used.all).await;
        }
    }

    /// Waits for all transfers.
    pub(crate) async fn wait(self) {
        for used in self.former {
            dropped(used.all).await;
        }
    }
}

/// Waits until the sender is dropped, which sends nothing.
async fn dropped(mut used: watch::Receiver<()>) {
    while used.changed().await.is_ok() {}
}

/// The present routing, and the end of each former one.
#[derive(Debug)]
pub(crate) struct RoutingSlot {
    present: ArcSwap<Routing>,
    /// The routings that are in use; the last one is the present one. Locked during an exchange.
    used: Mutex<Vec<RoutingUse>>,
}

impl RoutingSlot {
    pub(crate) fn new(joined: Arc<JoinedDevice>) -> Self {
        let (routing, used) = Routing::new(joined, None);
        Self { present: ArcSwap::from_pointee(routing), used: Mutex::new(vec![used]) }
    }

    #[inline]
    pub(crate) fn load(&self) -> Arc<Routing> {
        self.present.load_full()
    }

    /// Exchanges the routing. Returns the end of the former ones.
    pub(crate) fn exchange(
        &self,
        joined: Arc<JoinedDevice>,
        migration: Option<Arc<MigrationState>>,
    ) -> RoutingReleased {
        let (routing, new) = Routing::new(joined, migration);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|one| one.all.has_changed().is_ok());
        let former = used.clone();
        used.push(new);
        self.present.store(Arc::new(routing));
        RoutingReleased { former }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use lunar_block::MemoryDevice;
    use lunar_pool::{DeviceExtent, ExtentOrder};

    fn slot() -> RoutingSlot {
        let device = Arc::new(MemoryDevice::new(1 << 20, 512, 512).unwrap());
        let extent = DeviceExtent { device, blocks: BlockRange::new(0, 2048) };
        RoutingSlot::new(Arc::new(
            JoinedDevice::new("disk", &[extent], ExtentOrder::Linear).unwrap(),
        ))
    }

    fn exchange(slot: &RoutingSlot) -> RoutingReleased {
        slot.exchange(Arc::clone(&slot.load().joined), None)
    }

    fn is_over(wait: impl Future<Output = ()>) -> bool {
        wait.now_or_never().is_some()
    }

    /// Fault: a host that did not take the data of one relayed READ kept a move from copying, and
    /// the fast path of its disk off.
    #[test]
    fn a_relayed_read_keeps_only_the_source() {
        let slot = slot();
        let read = slot.load().held_by_relay(false);
        assert!(is_over(exchange(&slot).wait_for_changes()));
        assert!(!is_over(exchange(&slot).wait()), "the READ uses the source");
        assert!(is_over(exchange(&slot).wait_for_last()), "it has no part in the last one");
        drop(read);
        assert!(is_over(exchange(&slot).wait()));
    }

    /// Fault: a move that began after a cancelled one did not wait for the changes that had begun
    /// before both, and that the destination did not get.
    #[test]
    fn changes_of_all_former_routings_are_waited_for() {
        let slot = slot();
        let write = slot.load().held_by_relay(true);
        for _ in 0..3 {
            assert!(!is_over(exchange(&slot).wait_for_changes()));
        }
        drop(write);
        assert!(is_over(exchange(&slot).wait_for_changes()));
    }
}

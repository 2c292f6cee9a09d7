//! The present extents of a virtual disk, and the exchange of them.

use crate::migration::MigrationState;
use arc_swap::ArcSwap;
use lunar_block::{BlockDevice, BlockRange};
use lunar_pool::{JoinedDevice, JoinedShape};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// The extents of a virtual disk. Each transfer holds the value that it began with: an extent that
/// was moved is in use until all transfers with its former place have ended.
#[derive(Debug)]
pub struct Routing {
    pub(crate) joined: Arc<JoinedDevice>,
    /// Set while an extent is being moved.
    pub(crate) migration: Option<Arc<MigrationState>>,
    /// Dropped with the last holder.
    _held: oneshot::Sender<()>,
}

impl Routing {
    /// Returns the extents, and the translation of blocks to them.
    pub fn shape(&self) -> &JoinedShape {
        self.joined.shape()
    }

    /// True if an extent is being moved: changes of its blocks have two places.
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
        let part = self.joined.part_of_extent(migration.place(), range);
        (part.count > 0).then_some((migration, part))
    }
}

/// The end of all transfers with a former routing.
#[derive(Debug)]
pub(crate) struct RoutingReleased(oneshot::Receiver<()>);

impl RoutingReleased {
    pub(crate) async fn wait(self) {
        let _ = self.0.await; // nothing is sent: the last holder drops the sender
    }
}

/// The present routing, and the end of each former one.
#[derive(Debug)]
pub(crate) struct RoutingSlot {
    present: ArcSwap<Routing>,
    /// Resolves when nobody holds the present routing any more. Locked during an exchange.
    released: Mutex<oneshot::Receiver<()>>,
}

impl RoutingSlot {
    pub(crate) fn new(joined: Arc<JoinedDevice>) -> Self {
        let (held, released) = oneshot::channel();
        let routing = Routing { joined, migration: None, _held: held };
        let present = ArcSwap::from_pointee(routing);
        Self { present, released: Mutex::new(released) }
    }

    #[inline]
    pub(crate) fn load(&self) -> Arc<Routing> {
        self.present.load_full()
    }

    /// Exchanges the routing. Returns the end of the former one.
    pub(crate) fn exchange(
        &self,
        joined: Arc<JoinedDevice>,
        migration: Option<Arc<MigrationState>>,
    ) -> RoutingReleased {
        let (held, released) = oneshot::channel();
        let mut last = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        self.present.store(Arc::new(Routing { joined, migration, _held: held }));
        RoutingReleased(mem::replace(&mut last, released))
    }
}

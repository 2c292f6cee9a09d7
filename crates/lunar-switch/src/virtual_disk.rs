//! A disk on extents of other disks.

use crate::migration::{Change, MigratingChange, Migration, MigrationOptions, MigrationState};
use crate::routing::{Routing, RoutingReleased, RoutingSlot};
use bytes::Bytes;
use lunar_block::{
    AtomicCompareAndWrite, BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink,
    Error, ErrorKind, Geometry, IoContext, PoisonWatcher, RelayMap, RelayPart, Resize, Sparse,
    SyncCounts,
};
use lunar_pool::{ChangeQueue, DeviceExtent, ExtentOrder, JoinedDevice, RunToEnd, TransferTurn};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A disk whose blocks lie on extents of other disks, in linear order or striped.
///
/// A flush reaches all disks that have an extent. If one of them may have lost acknowledged writes,
/// every flush that began before the report fails.
#[derive(Debug)]
pub struct VirtualDisk {
    core: Arc<DiskCore>,
}

/// The part of a virtual disk that its tasks share.
#[derive(Debug)]
pub(crate) struct DiskCore {
    name: String,
    routing: RoutingSlot,
    /// The extents of a larger disk, until it is resized. Locked while the extents change.
    growth: Mutex<Option<Vec<DeviceExtent>>>,
    /// For the blocks that COMPARE AND WRITE compares here, and those that a migration copies.
    buffers: OnceLock<BufferPool>,
}

impl VirtualDisk {
    /// Creates the disk; `name` is its name in messages. One disk may have several of the extents.
    ///
    /// # Errors
    /// `Open` if there is no extent, one has blocks past the end of its disk, block lengths differ,
    /// or stripe units do not fit.
    pub fn new(name: &str, extents: &[DeviceExtent], order: ExtentOrder) -> Result<Self, Error> {
        let joined = JoinedDevice::new(name, extents, order)?;
        let core = DiskCore {
            name: name.to_owned(),
            routing: RoutingSlot::new(Arc::new(joined)),
            growth: Mutex::default(),
            buffers: OnceLock::new(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Returns the present extents, and the translation of blocks to them. The source of a
    /// moved extent stays in use until the value is dropped.
    #[inline]
    pub fn routing(&self) -> Arc<Routing> {
        self.core.routing.load()
    }

    /// Sets the extents that the disk has after it is [resized](BlockDevice::resize) to their size.
    /// All present blocks must stay where they are; the new ones have the data that is there. With
    /// `None` the disk can no longer be resized.
    pub fn prepare_growth(&self, extents: Option<Vec<DeviceExtent>>) {
        *self.core.growth() = extents;
    }

    /// Prepares the move of the extent `extent_index` to other blocks, which nobody else uses.
    ///
    /// # Errors
    /// `Open` if there is no such extent, or the blocks do not fit: they have another length or
    /// block length, overlap an extent of this disk, or their device cannot do what the disk
    /// offers.
    pub fn prepare_migration(
        &self,
        extent_index: usize,
        to: DeviceExtent,
        options: MigrationOptions,
    ) -> Result<Migration, Error> {
        let routing = self.routing();
        // The device of the end fulfils all other conditions.
        routing.joined.with_moved_extent(extent_index, &to, 0)?;
        let extents = routing.shape().extents();
        let overlaps = |other: &DeviceExtent| {
            is_same_device(other, &to)
                && other.blocks.lba < to.blocks.lba + to.blocks.count
                && to.blocks.lba < other.blocks.lba + other.blocks.count
        };
        let device = to.device.name();
        let refused = match () {
            () if extents.iter().any(overlaps) => {
                format!("the blocks of {device} overlap an extent of the disk")
            }
            () if to.device.is_read_only() => format!("{device} is read-only"),
            () if routing.joined.sparse().is_some() && to.device.sparse().is_none() => {
                format!("{device} does not support UNMAP, which hosts of the disk may use")
            }
            () => {
                let from = extents[extent_index].clone();
                return Ok(Migration::new(
                    Arc::clone(&self.core),
                    extent_index,
                    (from, to),
                    options,
                ));
            }
        };
        Err(self.core.refused(&refused))
    }
}

impl VirtualDisk {
    pub(crate) fn change(
        &self,
        range: BlockRange,
        change: Change,
    ) -> impl Future<Output = Result<(), Error>> + Send + '_ {
        self.core.change(range, change)
    }
}

fn is_same_device(one: &DeviceExtent, other: &DeviceExtent) -> bool {
    ptr::addr_eq(Arc::as_ptr(&one.device), Arc::as_ptr(&other.device))
}

/// The extents of the disk, and their exchange.
impl DiskCore {
    fn growth(&self) -> MutexGuard<'_, Option<Vec<DeviceExtent>>> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn buffers(&self) -> &BufferPool {
        self.buffers.get_or_init(BufferPool::default)
    }

    fn refused(&self, what: &str) -> Error {
        Error::new(ErrorKind::Open, &*self.name, what)
    }

    fn grow(&self, size_bytes: u64) -> Result<(), Error> {
        let mut growth = self.growth();
        let routing = self.routing.load();
        if routing.is_migrating() {
            return Err(self.refused("it cannot grow while one of its extents is being moved"));
        }
        let extents = growth.take();
        let extents = extents.ok_or_else(|| self.refused("its extents determine its size"))?;
        let blocks =
            extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.blocks.count));
        let block_bytes = u64::from(routing.joined.geometry().block_bytes);
        if blocks.saturating_mul(block_bytes) != size_bytes {
            return Err(self.refused("its new extents have another size"));
        }
        routing.joined.extend(&extents)
    }

    /// Begins to send changes of an extent to its source and destination. Returns the end of the
    /// transfers that began before.
    pub(crate) fn begin_migration(
        &self,
        migration: &Arc<MigrationState>,
    ) -> Result<RoutingReleased, Error> {
        let _extents = self.growth();
        let routing = self.routing.load();
        if routing.is_migrating() {
            return Err(self.refused("another extent is being moved"));
        }
        if !migration.is_of(routing.shape()) {
            return Err(self.refused("the extent has changed"));
        }
        Ok(self.routing.exchange(Arc::clone(&routing.joined), Some(Arc::clone(migration))))
    }

    /// Ends a migration: changes go to the source alone.
    pub(crate) fn end_migration(&self) -> RoutingReleased {
        let _extents = self.growth();
        self.routing.exchange(Arc::clone(&self.routing.load().joined), None)
    }

    /// Returns the disk with an extent moved.
    pub(crate) fn moved(
        &self,
        extent_index: usize,
        to: &DeviceExtent,
        losses: u64,
    ) -> Result<JoinedDevice, Error> {
        self.routing.load().joined.with_moved_extent(extent_index, to, losses)
    }

    /// Ends a migration: all transfers go to the destination.
    pub(crate) fn exchange_moved(&self, joined: JoinedDevice) -> RoutingReleased {
        let _extents = self.growth();
        self.routing.exchange(Arc::new(joined), None)
    }
}

/// Changes of blocks.
impl DiskCore {
    async fn change(self: &Arc<Self>, range: BlockRange, change: Change) -> Result<(), Error> {
        let routing = self.routing.load();
        if routing.migration_of(range).is_none() {
            return change.apply(&*routing.joined, range).await;
        }
        drop(routing);
        RunToEnd::new(Arc::clone(self).change_both(range, change)).await
    }

    /// Changes blocks, of which an extent that is being moved may have some.
    async fn change_both(self: Arc<Self>, range: BlockRange, change: Change) -> Result<(), Error> {
        loop {
            let routing = self.routing.load();
            let Some((migration, part)) = routing.migration_of(range) else {
                return in_own_context(change.apply(&*routing.joined, range)).await;
            };
            migration.count_transfer();
            let _turn = self.turn(migration, part, range).await?;
            if self.is_present(&routing) {
                let losses = routing.joined.cache_losses();
                let mut both = MigratingChange::begin(migration, part)?;
                both.start(&routing.joined, range, &change);
                let done = in_own_context(change.apply(&*routing.joined, range)).await;
                let done = both.end(done).await;
                routing.joined.change_ended(losses);
                return done;
            }
        }
    }

    async fn turn(
        &self,
        migration: &MigrationState,
        part: BlockRange,
        range: BlockRange,
    ) -> Result<TransferTurn, Error> {
        let turn = ChangeQueue::enter_transfer(migration.queue(), part).await;
        turn.ok_or_else(|| {
            let what = "the command was cancelled";
            Error::new(ErrorKind::Medium, &*self.name, what).at(range)
        })
    }

    fn is_present(&self, routing: &Arc<Routing>) -> bool {
        Arc::ptr_eq(routing, &self.routing.load())
    }

    /// Compares and writes blocks. The caller keeps its own users out meanwhile; users of the
    /// storages see each extent change by itself.
    async fn compare_and_write(
        self: &Arc<Self>,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, Error> {
        let routing = self.routing.load();
        if routing.migration_of(range).is_none() {
            return self.compare_and_write_on(&routing, range, old_and_new, durable).await;
        }
        drop(routing);
        RunToEnd::new(Arc::clone(self).compare_and_write_both(range, old_and_new, durable)).await
    }

    async fn compare_and_write_both(
        self: Arc<Self>,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, Error> {
        let new = old_and_new.slice(old_and_new.len() / 2..);
        loop {
            let routing = self.routing.load();
            let compare = self.compare_and_write_on(&routing, range, old_and_new.clone(), durable);
            let Some((migration, part)) = routing.migration_of(range) else {
                return in_own_context(compare).await;
            };
            migration.count_transfer();
            let _turn = self.turn(migration, part, range).await?;
            if self.is_present(&routing) {
                let losses = routing.joined.cache_losses();
                let mut both = MigratingChange::begin(migration, part)?;
                let compared = in_own_context(compare).await;
                if let Ok(None) = compared {
                    let change = Change::Write { from: new, durable };
                    both.start(&routing.joined, range, &change);
                } else if let Ok(Some(_)) = compared {
                    both.end_unchanged();
                    return compared;
                }
                let compared = both.end(compared).await;
                routing.joined.change_ended(losses);
                return compared;
            }
        }
    }

    async fn compare_and_write_on(
        &self,
        routing: &Routing,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, Error> {
        let half = old_and_new.len() / 2;
        routing.joined.geometry().checked(&self.name, range, half, true)?;
        let mut parts = routing.shape().parts(range);
        if let (Some((device, part)), None) = (parts.next(), parts.next())
            && let Some(compares) = device.compare_and_write()
        {
            return compares.compare_and_write(part, old_and_new, durable).await;
        }
        drop(parts);
        let old = routing.joined.read(range, self.buffers().take(half)).await?;
        let differs = old.iter().zip(&old_and_new[..half]).position(|(one, other)| one != other);
        if differs.is_none() {
            routing.joined.write(range, old_and_new.slice(half..), durable).await?;
        }
        Ok(differs.map(|offset| offset as u64))
    }
}

/// Does a part of a transfer in a context of its own: a device that waits must not let the caller
/// cancel the other parts.
async fn in_own_context<T>(part: impl Future<Output = T>) -> T {
    match IoContext::current() {
        Some(context) => context.part().scope(part).await,
        None => part.await,
    }
}

impl Resize for VirtualDisk {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(self.core.grow(size_bytes)))
    }
}

impl AtomicCompareAndWrite for VirtualDisk {
    fn blocks_max(&self) -> u8 {
        let routing = self.routing();
        let devices = routing.shape().devices().iter();
        let comparing = devices.filter_map(|device| device.compare_and_write());
        comparing.map(AtomicCompareAndWrite::blocks_max).min().unwrap_or(0)
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(self.core.compare_and_write(range, old_and_new, durable))
    }
}

impl RelayMap for VirtualDisk {
    /// While an extent is being moved, the disk makes all transfers by itself: changes go to
    /// two devices. Relayed WRITEs hold the routing, as other transfers do; a READ only keeps the
    /// source of an extent in use, so that a host that does not take its data delays no copy.
    fn add_parts(&self, range: BlockRange, is_write: bool, parts: &mut Vec<RelayPart>) -> bool {
        let routing = self.routing();
        if routing.is_migrating() {
            routing.count_transfer();
            return false;
        }
        let first = parts.len();
        let added =
            routing.joined.relay_map().is_some_and(|map| map.add_parts(range, is_write, parts));
        for part in parts.iter_mut().skip(first) {
            part.held = Some(routing.held_by_relay(is_write));
        }
        added
    }
}

impl BlockDevice for VirtualDisk {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        self.routing().joined.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        let routing = self.routing();
        routing.count_transfer();
        Box::pin(async move { routing.joined.read(range, into).await })
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        let routing = self.routing();
        routing.count_transfer();
        routing.joined.try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.change(range, Change::Write { from, durable }))
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        let routing = self.routing();
        routing.migration_of(range).is_none() && routing.joined.try_write_now(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        let routing = self.routing();
        Box::pin(async move {
            routing.joined.flush().await?;
            match &routing.migration {
                Some(migration) => migration.flush_if_uncertain().await,
                None => Ok(()),
            }
        })
    }

    fn cache_losses(&self) -> Option<u64> {
        self.routing().joined.cache_losses()
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let _ = self.core.buffers.set(buffers.clone()); // set once
        self.routing().joined.set_buffers(buffers);
    }

    fn prefetch(&self, range: BlockRange) {
        self.routing().joined.prefetch(range);
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.routing().joined.sparse().is_some().then_some(self)
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        let routing = self.routing();
        let mut devices = routing.shape().devices().iter();
        devices.all(|device| device.compare_and_write().is_some()).then_some(self)
    }

    /// Returns `None` unless a growth was prepared.
    fn resize(&self) -> Option<&dyn Resize> {
        self.core.growth().is_some().then_some(self)
    }

    fn relay_map(&self) -> Option<&dyn RelayMap> {
        self.routing().joined.relay_map().is_some().then_some(self)
    }

    fn is_read_only(&self) -> bool {
        self.routing().joined.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.routing().joined.io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        let routing = self.routing();
        Box::pin(async move { routing.joined.recover().await })
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.routing().joined.watch_poison(watcher);
    }

    fn poison(&self) {
        self.routing().joined.poison();
    }

    fn link(&self) -> Option<DeviceLink> {
        self.routing().joined.link()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.routing().joined.sync_counts()
    }
}

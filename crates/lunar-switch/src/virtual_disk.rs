//! A disk on extents of other disks.

use bytes::Bytes;
use lunar_block::{
    AtomicCompareAndWrite, BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink,
    Error, ErrorKind, Geometry, PoisonWatcher, RelayMap, Resize, Sparse, SyncCounts,
};
use lunar_pool::{DeviceExtent, ExtentOrder, JoinedDevice, JoinedShape};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A disk whose blocks lie on extents of other disks, in linear order or striped.
///
/// A flush reaches all disks that have an extent. If one of them may have lost acknowledged writes,
/// every flush that began before the report fails.
#[derive(Debug)]
pub struct VirtualDisk {
    joined: JoinedDevice,
    /// The extents of a larger disk, until it is resized.
    growth: Mutex<Option<Vec<DeviceExtent>>>,
    /// Memory for the blocks of a COMPARE AND WRITE over several extents, which this disk compares.
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
        Ok(Self { joined, growth: Mutex::default(), buffers: OnceLock::new() })
    }

    /// Returns the present extents, and the translation of blocks to them.
    pub fn shape(&self) -> &JoinedShape {
        self.joined.shape()
    }

    /// Sets the extents that the disk has after it is [resized](BlockDevice::resize) to their size.
    /// All present blocks must stay where they are; the new ones have the data that is there. With
    /// `None` the disk can no longer be resized.
    pub fn prepare_growth(&self, extents: Option<Vec<DeviceExtent>>) {
        *self.growth() = extents;
    }

    fn growth(&self) -> MutexGuard<'_, Option<Vec<DeviceExtent>>> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, size_bytes: u64) -> Result<(), Error> {
        let refused = |what: &str| Error::new(ErrorKind::Open, self.name(), what);
        let mut growth = self.growth();
        let extents = growth.take().ok_or_else(|| refused("its extents determine its size"))?;
        let blocks =
            extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.blocks.count));
        let block_bytes = u64::from(self.geometry().block_bytes);
        if blocks.saturating_mul(block_bytes) != size_bytes {
            return Err(refused("its new extents have another size"));
        }
        self.joined.extend(&extents)
    }
}

impl Resize for VirtualDisk {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(self.grow(size_bytes)))
    }
}

impl VirtualDisk {
    /// Compares and writes blocks of several extents. The caller keeps its own users out meanwhile;
    /// users of the storages see each extent change by itself.
    async fn compare_and_write_parts(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, Error> {
        let half = old_and_new.len() / 2;
        let old = self
            .joined
            .read(range, self.buffers.get_or_init(BufferPool::default).take(half))
            .await?;
        let differs = old.iter().zip(&old_and_new[..half]).position(|(one, other)| one != other);
        if differs.is_none() {
            self.joined.write(range, old_and_new.slice(half..), durable).await?;
        }
        Ok(differs.map(|offset| offset as u64))
    }

    fn offers_compare_and_write(&self) -> bool {
        self.shape().devices().iter().all(|device| device.compare_and_write().is_some())
    }
}

impl AtomicCompareAndWrite for VirtualDisk {
    fn blocks_max(&self) -> u8 {
        let devices = self.shape().devices().iter();
        let most = devices.filter_map(|device| device.compare_and_write());
        most.map(AtomicCompareAndWrite::blocks_max).min().unwrap_or(0)
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        let checked = self.geometry().checked(self.name(), range, old_and_new.len() / 2, true);
        if let Err(error) = checked {
            return Box::pin(std::future::ready(Err(error)));
        }
        let mut parts = self.shape().parts(range);
        if let (Some((device, part)), None) = (parts.next(), parts.next())
            && let Some(compares) = device.compare_and_write()
        {
            return compares.compare_and_write(part, old_and_new, durable);
        }
        Box::pin(self.compare_and_write_parts(range, old_and_new, durable))
    }
}

impl BlockDevice for VirtualDisk {
    fn name(&self) -> &str {
        self.joined.name()
    }

    fn geometry(&self) -> Geometry {
        self.joined.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.joined.read(range, into)
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.joined.try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.joined.write(range, from, durable)
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.joined.try_write_now(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.joined.flush()
    }

    fn cache_losses(&self) -> Option<u64> {
        self.joined.cache_losses()
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let _ = self.buffers.set(buffers.clone()); // set once
        self.joined.set_buffers(buffers);
    }

    fn prefetch(&self, range: BlockRange) {
        self.joined.prefetch(range);
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.joined.sparse()
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        self.offers_compare_and_write().then_some(self)
    }

    /// Returns `None` unless a growth was prepared.
    fn resize(&self) -> Option<&dyn Resize> {
        self.growth().is_some().then_some(self)
    }

    fn relay_map(&self) -> Option<&dyn RelayMap> {
        self.joined.relay_map()
    }

    fn is_read_only(&self) -> bool {
        self.joined.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.joined.io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.joined.recover()
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.joined.watch_poison(watcher);
    }

    fn poison(&self) {
        self.joined.poison();
    }

    fn link(&self) -> Option<DeviceLink> {
        self.joined.link()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.joined.sync_counts()
    }
}

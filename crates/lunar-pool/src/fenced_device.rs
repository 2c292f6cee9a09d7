//! A decorator of a member that ends all use of the device when the pool has lost its ownership.

use crate::lease::is_same_device;
use bytes::Bytes;
use lunar_block::{
    BackingProbe, BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Clear, DeviceLink, Error,
    ErrorKind, ExclusiveOwnership, Extent, Geometry, OwnershipFence, PoisonWatcher, Resize,
    SpaceUsage, Sparse, SyncCounts, WriteLease,
};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The fence of a pool, and the limits of its devices.
#[derive(Debug, Default)]
pub(crate) struct PoolFence {
    lost: Arc<OwnershipFence>,
    devices: Mutex<Vec<(Weak<dyn BlockDevice>, DeviceLimits)>>,
}

/// The limits of the use of one device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLimits {
    /// The part of the pool's fence.
    pub(crate) fence: Arc<OwnershipFence>,
    /// Without limit unless a lease is acquired.
    pub(crate) lease: Arc<WriteLease>,
}

impl PoolFence {
    /// Returns the fence of which those of all devices are parts.
    pub(crate) fn lost(&self) -> &Arc<OwnershipFence> {
        &self.lost
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_lost()
    }

    /// Returns the limits of a device.
    pub(crate) fn limits_of(&self, device: &Arc<dyn BlockDevice>) -> DeviceLimits {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|(one, _)| one.strong_count() > 0);
        if let Some((_, found)) = devices.iter().find(|(one, _)| is_same_device(one, device)) {
            return found.clone();
        }
        let fence = Arc::new(OwnershipFence::part_of(&self.lost));
        let limits = DeviceLimits { fence, lease: Arc::default() };
        devices.push((Arc::downgrade(device), limits.clone()));
        limits
    }

    /// Forgets the limits of a device that was given back. It may become a member later.
    pub(crate) fn forget(&self, device: &Arc<dyn BlockDevice>) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|(one, _)| !is_same_device(one, device));
    }
}

/// A member of a pool. The loss of a member that the pool needs fences all, also those that have no
/// ownership of their own. Nothing is read from them or written to them then. A member whose lease
/// is over is not used until the lease is renewed.
#[derive(Debug)]
pub(crate) struct FencedDevice {
    inner: Arc<dyn BlockDevice>,
    limits: DeviceLimits,
}

impl FencedDevice {
    pub(crate) fn new(inner: Arc<dyn BlockDevice>, limits: DeviceLimits) -> Self {
        Self { inner, limits }
    }

    fn is_usable(&self) -> bool {
        !self.limits.fence.is_lost() && !self.limits.lease.is_over()
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.limits.fence.is_lost() {
            return fenced(self.inner.name());
        }
        let what = "its lease is over because it could not be renewed in time; it is not used \
                    until it is renewed";
        Error::new(ErrorKind::Disconnected, self.inner.name(), what)
    }

    fn guard<'a, T: Send + 'a>(
        &'a self,
        run: impl FnOnce(&'a dyn BlockDevice) -> BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        match self.is_usable() {
            false => Box::pin(std::future::ready(Err(self.refusal()))),
            true => run(&*self.inner),
        }
    }

    fn guard_sparse<'a, T: Send + 'a>(
        &'a self,
        run: impl FnOnce(&'a dyn Sparse) -> BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        self.guard(|inner| match inner.sparse() {
            Some(sparse) => run(sparse),
            None => {
                let error =
                    Error::new(ErrorKind::Medium, inner.name(), "it does not support deallocation");
                Box::pin(std::future::ready(Err(error)))
            }
        })
    }
}

/// Returns the error of a pool, or of its member, that was fenced.
#[cold]
pub(crate) fn fenced(name: &str) -> Error {
    let what = "another owner has taken over a member of the pool, or the pool is closed: nothing \
                is read or written any more";
    Error::new(ErrorKind::Fenced, name, what)
}

impl BlockDevice for FencedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.guard(|inner| inner.read(range, into))
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.is_usable() && self.inner.try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.guard(|inner| inner.write(range, from, durable))
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.is_usable() && self.inner.try_write_now(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.guard(|inner| inner.flush())
    }

    fn cache_losses(&self) -> Option<u64> {
        self.inner.cache_losses()
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        self.inner.set_buffers(buffers);
    }

    fn prefetch(&self, range: BlockRange) {
        self.inner.prefetch(range);
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.inner.sparse().is_some().then_some(self)
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        self.inner.ownership()
    }

    fn resize(&self) -> Option<&dyn Resize> {
        match self.is_usable() {
            false => None,
            true => self.inner.resize(),
        }
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.guard(|inner| inner.recover())
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.inner.watch_poison(watcher);
    }

    fn poison(&self) {
        self.inner.poison();
    }

    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        self.inner.backing()
    }

    fn link(&self) -> Option<DeviceLink> {
        self.inner.link()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.inner.sync_counts()
    }
}

impl Sparse for FencedDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.guard_sparse(|inner| inner.unmap(range, durable))
    }

    fn unmap_all(
        &self,
        ranges: Vec<BlockRange>,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.guard_sparse(|inner| inner.unmap_all(ranges, durable))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.guard_sparse(|inner| inner.write_zeroes(range, may_unmap, durable))
    }

    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        self.guard_sparse(|inner| inner.clear_piece(ranges, clear, durable))
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        self.guard_sparse(|inner| inner.status(range, extents_max))
    }

    fn granularity_bytes(&self) -> u32 {
        self.inner.sparse().map_or(self.geometry().block_bytes, Sparse::granularity_bytes)
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        self.inner.sparse().map_or(Ok(None), Sparse::space_usage)
    }
}

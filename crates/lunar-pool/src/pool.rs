//! An open pool.

use crate::PoolError;
use crate::assembly::Assembly;
use crate::create::{self, PoolSpec};
use crate::format::{Label, PoolId, PoolKind};
use crate::joined::JoinedDevice;
use crate::member_device::MemberDevice;
use crate::status::{MemberState, PoolHealth, PoolMember, PoolStatus};
use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink, Error, Geometry,
    PoisonWatcher, Sparse, SyncCounts,
};
use std::sync::Arc;

/// Options for opening a pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenOptions {}

/// An open pool: a block device whose blocks lie on its members.
///
/// A pool reports lost writes to all of its users: if a member may have lost acknowledged writes,
/// every flush that began before the report fails, whichever call has found the loss.
#[derive(Debug)]
pub struct Pool {
    label: Label,
    joined: JoinedDevice,
}

impl Pool {
    /// Labels devices as the members of a new pool, in their order. Their data is lost.
    ///
    /// # Errors
    /// The device that does not fit, or is a member of a pool already; nothing is written then.
    /// `Device` when a device failed.
    pub async fn create(
        spec: PoolSpec,
        members: Vec<Arc<dyn BlockDevice>>,
    ) -> Result<PoolId, PoolError> {
        create::create(spec, members).await
    }

    /// Clears the labels of a device, durably, so that it is no member of a pool any more. Its data
    /// stays, but no pool finds it again.
    ///
    /// # Errors
    /// `TooSmall` for a device that cannot be a member · `Device` when it failed.
    pub async fn clear_label(device: Arc<dyn BlockDevice>) -> Result<(), PoolError> {
        let member = MemberDevice::new(device);
        if member.layout().data_blocks_max() == 0 {
            let device = member.name().to_owned();
            return Err(PoolError::TooSmall { device, need_blocks: None });
        }
        Ok(member.clear_labels().await?)
    }

    /// Opens the pool of labelled devices, given in any order. `name` is its name in messages.
    ///
    /// # Errors
    /// The device that does not belong to the pool, or the members that are missing.
    pub async fn open(
        name: &str,
        members: Vec<Arc<dyn BlockDevice>>,
        _options: OpenOptions,
    ) -> Result<Arc<Self>, PoolError> {
        let found = Assembly::find(members, &BufferPool::default()).await?;
        let label = found.newest.clone();
        if label.kind == PoolKind::MIRROR {
            return Err(PoolError::Kind(label.kind));
        }
        let joined = JoinedDevice::open(name, found)?;
        Ok(Arc::new(Self { label, joined }))
    }

    /// Returns the id of the pool.
    pub fn id(&self) -> PoolId {
        self.label.pool
    }

    /// Returns the kind of the pool.
    pub fn kind(&self) -> PoolKind {
        self.label.kind
    }

    /// Returns the status of the pool and of its members.
    pub fn status(&self) -> PoolStatus {
        let links = self.joined.devices().map(|device| device.link());
        let health = match links.flatten().any(|link| link == DeviceLink::Failed) {
            true => PoolHealth::Failed,
            false => PoolHealth::Healthy,
        };
        let member = |(place, device): (u16, &Arc<dyn BlockDevice>)| PoolMember {
            place,
            device: device.name().to_owned(),
            state: MemberState::Current,
            missing_bytes: 0,
            outstanding_reads: 0,
            latency_nanos: 0,
            last_failure: String::new(),
        };
        PoolStatus {
            pool: self.label.pool,
            kind: self.label.kind,
            generation: self.label.generation,
            health,
            losses: self.joined.cache_losses().unwrap_or(0),
            members: (0..).zip(self.joined.devices()).map(member).collect(),
        }
    }

    fn device(&self) -> &dyn BlockDevice {
        &self.joined
    }
}

impl BlockDevice for Pool {
    fn name(&self) -> &str {
        self.device().name()
    }

    fn geometry(&self) -> Geometry {
        self.device().geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.device().read(range, into)
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.device().try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.device().write(range, from, durable)
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.device().try_write_now(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.device().flush()
    }

    fn cache_losses(&self) -> Option<u64> {
        self.device().cache_losses()
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        self.device().set_buffers(buffers);
    }

    fn prefetch(&self, range: BlockRange) {
        self.device().prefetch(range);
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.device().sparse()
    }

    fn is_read_only(&self) -> bool {
        self.device().is_read_only()
    }

    fn io_tier(&self) -> String {
        self.device().io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.device().recover()
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.device().watch_poison(watcher);
    }

    fn poison(&self) {
        self.device().poison();
    }

    fn link(&self) -> Option<DeviceLink> {
        self.device().link()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.device().sync_counts()
    }
}

//! An open pool.

use crate::assembly::Assembly;
use crate::create::{self, PoolSpec};
use crate::error::{MirrorSide, PoolError};
use crate::fenced_device::fenced;
use crate::format::{Label, PoolId, PoolKind};
use crate::joined::{LabelledDevice, SharedLabelledDevice};
use crate::member_device::MemberDevice;
use crate::mirror::{MirrorDevice, MirrorOptions, ScrubOptions, ScrubReport};
use crate::ownership::{LeftOutMember, PoolOwnership};
use crate::resolve;
use crate::status::{PoolHealth, PoolStatus};
use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink, Error, Geometry,
    PoisonWatcher, Resize, Sparse, SyncCounts,
};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Options for opening a pool.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// True to open a mirror although members with all data are missing. They are stale from then
    /// on: if they are opened elsewhere, the mirror is split, and only one side can be kept.
    pub is_degraded: bool,
    /// Spare devices of a mirror, without labels. One of them replaces a member that is missing,
    /// whose device is gone, or that was left out for [`MirrorOptions::spare_wait`], and gets its
    /// label. A spare device that has replaced a member before is found by this label.
    pub spares: Vec<Arc<dyn BlockDevice>>,
    /// Options of a mirror.
    pub mirror: MirrorOptions,
    /// True to take the pool over from another host, which cannot read or write it from then on.
    pub take_over: bool,
    /// The key with which members on other machines are owned, by default a random one; its upper
    /// 32 bits name the owner. With a key that outlives the process, a host gets its pool back
    /// after a crash without a take-over.
    pub owner_key: Option<NonZeroU64>,
    /// Name of the owner of members whose targets have no persistent reservations; other hosts see
    /// it. Empty: they see the key.
    pub owner_name: String,
    /// Length of a lease of such members, up to [`LEASE_TIME_MAX`](crate::format::LEASE_TIME_MAX);
    /// `None`: a minute. A host that waits for the end of a lease waits for this time; a member
    /// that does not answer for two thirds of it is not used until it answers.
    pub lease_time: Option<Duration>,
    /// The label that [`Pool::label`] returned when the pool was open before. If the members of a
    /// mirror do not belong together, those are used that belong to this label: a device that shows
    /// another label does not keep the pool closed.
    pub recorded: Option<Label>,
    /// True to acquire no members: the caller makes sure that no other host opens the pool.
    pub is_unowned: bool,
}

/// An open pool: a block device whose blocks lie on its members.
///
/// A pool reports lost writes to all of its users: if a member may have lost acknowledged writes,
/// every flush that began before the report fails, whichever call has found the loss.
#[derive(Debug)]
pub struct Pool {
    id: PoolId,
    kind: PoolKind,
    joined: Joined,
    ownership: Arc<PoolOwnership>,
    left_out: Mutex<Vec<LeftOutMember>>,
}

/// The members of a pool, joined to a device.
#[derive(Debug)]
enum Joined {
    /// A concatenation or a stripe.
    Device(SharedLabelledDevice),
    Mirror(MirrorDevice),
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

    /// Decides a split mirror, which is not open: the members of the side `keep`, as
    /// [`PoolError::Split`] shows it, keep their content. Those of all other sides become stale: at
    /// the next opening they get all data of the kept side, and what was written to them is lost.
    /// `devices` are all members, as for [`open`](Self::open).
    ///
    /// If this fails or is interrupted, the mirror is still split, and the call can be repeated.
    ///
    /// # Errors
    /// The device that does not belong to the pool, as of `open` · `NoSuchSide` · `NoneCurrent` if
    /// the kept side has no member with all data · `Cloned` for two devices of different sides with
    /// one slot · `ReadOnly` · `Device`.
    pub async fn resolve(
        devices: Vec<Arc<dyn BlockDevice>>,
        keep: &MirrorSide,
    ) -> Result<(), PoolError> {
        resolve::resolve(devices, keep).await
    }

    /// Checks that devices are the members of one pool, without writing to them: `Split` for a
    /// mirror whose sides were written apart.
    ///
    /// # Errors
    /// The device that does not belong to the pool, as of [`open`](Self::open); missing members are
    /// no error.
    pub async fn check(devices: Vec<Arc<dyn BlockDevice>>) -> Result<(), PoolError> {
        let wait = MirrorOptions::default().member_wait;
        let buffers = BufferPool::default();
        Assembly::find(devices, Vec::new(), None, (wait, &buffers)).await.map(drop)
    }

    /// Opens the pool of labelled devices, given in any order. `name` is its name in messages.
    ///
    /// Members that other hosts can reach are acquired before anything is written, all or none:
    /// another host cannot write to them until the pool is [closed](Self::close), unless it takes
    /// the pool over. Then all operations of the pool fail with
    /// [`ErrorKind::Fenced`](lunar_block::ErrorKind::Fenced).
    ///
    /// Members whose targets have no persistent reservations get leases, which tasks of the current
    /// runtime renew. If another host has such a member, this waits until it renews its lease; or,
    /// if it is gone or the pool is taken over, for the length of the lease.
    ///
    /// # Errors
    /// The device that does not belong to the pool, or the members that are missing ·
    /// `OwnedElsewhere`.
    pub async fn open(
        name: &str,
        members: Vec<Arc<dyn BlockDevice>>,
        options: OpenOptions,
    ) -> Result<Arc<Self>, PoolError> {
        let ownership = PoolOwnership::new(name, &options)?;
        let ownership = Arc::new(ownership);
        let opened = Self::open_owned(name, members, options, Arc::clone(&ownership)).await;
        if opened.is_err()
            && let Err(error) = ownership.release(is_quiet(&opened)).await
        {
            tracing::warn!("{name}: a member may still be owned: {error}");
        }
        Ok(Arc::new(opened?))
    }

    async fn open_owned(
        name: &str,
        members: Vec<Arc<dyn BlockDevice>>,
        options: OpenOptions,
        ownership: Arc<PoolOwnership>,
    ) -> Result<Self, PoolError> {
        let mut found = ownership.find(members, &options).await?;
        let left_out = Mutex::new(std::mem::take(&mut found.left_out));
        let OpenOptions { is_degraded, mirror, .. } = options;
        let (id, kind) = (found.newest.pool, found.newest.kind);
        let joined = if kind == PoolKind::MIRROR {
            let owned = Arc::clone(&ownership);
            Joined::Mirror(MirrorDevice::open(name, found, is_degraded, mirror, owned).await?)
        } else {
            Joined::Device(SharedLabelledDevice(Arc::new(LabelledDevice::open(name, found)?)))
        };
        Ok(Self { id, kind, joined, ownership, left_out })
    }

    /// Returns the label of a mirror as its members have it, durably, and tells of later ones. A
    /// server that keeps it can [open the mirror](OpenOptions::recorded) although a device shows a
    /// label of another history.
    pub fn label(&self) -> Option<watch::Receiver<Label>> {
        match &self.joined {
            Joined::Device(_) => None,
            Joined::Mirror(mirror) => Some(mirror.label()),
        }
    }

    /// Returns the members without which the pool was opened because they could not be acquired, or
    /// because of their labels, at the first call. Such a member may [return](Self::rejoin).
    pub fn take_left_out(&self) -> Vec<LeftOutMember> {
        std::mem::take(&mut *self.left_out.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the slot of a member of a mirror to a new device, while the mirror is in use. The
    /// device needs no label, and loses its data. Returns when the device has the slot, durably;
    /// the mirror is copied to it from then on, as [`status`](Self::status) shows.
    ///
    /// The member may be missing, stale or current. A current one is left out first, durably. The
    /// replaced device keeps its label, which is older than that of the new device: a mirror that
    /// is opened with both uses the new one. Runs to its end, also if its future is dropped.
    ///
    /// # Errors
    /// The reason why the device does not fit; nothing was changed then · `LastCurrent` for a
    /// member that has data of its own · `Device` when a device failed; the replaced member is
    /// recovered then.
    pub async fn replace(&self, slot: u16, device: Arc<dyn BlockDevice>) -> Result<(), PoolError> {
        self.mirror("replace a member")?.replace(slot, device).await
    }

    /// Gives a member that was missing when the mirror was opened its slot again, while the mirror
    /// is in use. The device has the label of this member. Returns the slot; the mirror is copied
    /// to the device from then on. Runs to its end, also if its future is dropped.
    ///
    /// # Errors
    /// The reason why the device is not this member any more, as of [`open`](Self::open) ·
    /// `NoSuchMember` for one that was removed · `Cloned` if another device has its slot.
    pub async fn rejoin(&self, device: Arc<dyn BlockDevice>) -> Result<u16, PoolError> {
        self.mirror("wait for a member")?.rejoin(device).await
    }

    /// Adds a member to a mirror while it is in use. The device needs no label, and loses its data.
    /// Returns its slot when the labels of all members name it, durably; the mirror is copied to
    /// it from then on. Runs to its end, also if its future is dropped.
    ///
    /// # Errors
    /// The reason why the device does not fit; nothing was changed then · `NotAMirror` for a
    /// concatenation or a stripe · `Device` when a device failed. If the labels of no current
    /// member could be written, the mirror acknowledges nothing until they are, with the new slot.
    pub async fn add(&self, device: Arc<dyn BlockDevice>) -> Result<u16, PoolError> {
        self.mirror("add a member")?.add(device).await
    }

    /// Removes a member of a mirror while it is in use; the mirror keeps at least two. Returns when
    /// the labels of the others record this, durably: the device is never a member of this mirror
    /// again, also if it is given at the next opening. Its label is cleared if it can be reached.
    /// Runs to its end, also if its future is dropped.
    ///
    /// # Errors
    /// `TooFewMembers` · `LastCurrent` for a member that has data of its own · `NoSuchMember` ·
    /// `Device` when all current members failed.
    pub async fn remove(&self, slot: u16) -> Result<(), PoolError> {
        self.mirror("remove a member")?.remove(slot).await
    }

    /// Reads all current members of a mirror and compares them, piece by piece alongside the users.
    /// Blocks that a member cannot read are written to it again from another one. Blocks that
    /// differ are made equal: to the content that most of at least three members have, else to that
    /// of the first current member, as after a power cut.
    ///
    /// Progress and results are in [`status`](Self::status). The scrub stops when this future is
    /// dropped, at the end of a piece.
    ///
    /// # Errors
    /// `NotAMirror` · `ScrubRuns` · `Device` if the mirror is read-only or is closed, or if no
    /// member has accepted a repair.
    pub async fn scrub(&self, options: ScrubOptions) -> Result<ScrubReport, PoolError> {
        self.mirror("be compared")?.scrub(options).await
    }

    fn mirror(&self, operation: &'static str) -> Result<&MirrorDevice, PoolError> {
        match &self.joined {
            Joined::Mirror(mirror) => Ok(mirror),
            Joined::Device(_) => Err(PoolError::NotAMirror { kind: self.kind, operation }),
        }
    }

    /// Closes the pool: everything is durable, and a mirror has no marks left. Later operations of
    /// a mirror fail. A mirror that is dropped without this call opens as after a crash.
    ///
    /// # Errors
    /// Operations that did not end in time, a last flush that failed, or a loss that no flush has
    /// reported; a member that is still owned. The pool is closed in any case.
    pub async fn close(&self) -> Result<(), Error> {
        let closed = match &self.joined {
            Joined::Device(device) => device.0.joined().flush().await,
            Joined::Mirror(mirror) => mirror.close().await,
        };
        let released = self.ownership.release(closed.is_ok()).await;
        closed.and(released)
    }

    fn is_fenced(&self) -> bool {
        self.ownership.fence().is_lost()
    }

    fn fenced<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T, Error>> {
        Box::pin(std::future::ready(Err(fenced(self.name()))))
    }

    /// Returns the id of the pool.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Returns the kind of the pool.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Returns the status of the pool and of its members.
    pub fn status(&self) -> PoolStatus {
        let status = match &self.joined {
            Joined::Device(device) => device.0.status(self.id, self.kind),
            Joined::Mirror(mirror) => mirror.status(),
        };
        match self.is_fenced() {
            true => PoolStatus { health: PoolHealth::Fenced, ..status },
            false => status,
        }
    }

    fn device(&self) -> &dyn BlockDevice {
        match &self.joined {
            Joined::Device(device) => device.0.joined(),
            Joined::Mirror(mirror) => mirror,
        }
    }
}

/// True if no write of an opening that failed is in flight.
fn is_quiet<T>(opened: &Result<T, PoolError>) -> bool {
    !matches!(opened, Err(PoolError::Device(_)))
}

impl BlockDevice for Pool {
    fn name(&self) -> &str {
        self.device().name()
    }

    fn geometry(&self) -> Geometry {
        self.device().geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        if self.is_fenced() {
            return self.fenced();
        }
        self.device().read(range, into)
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        !self.is_fenced() && self.device().try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        if self.is_fenced() {
            return self.fenced();
        }
        self.device().write(range, from, durable)
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        !self.is_fenced() && self.device().try_write_now(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        if self.is_fenced() {
            return self.fenced();
        }
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

    fn resize(&self) -> Option<&dyn Resize> {
        match &self.joined {
            _ if self.is_read_only() => None,
            Joined::Device(device) => Some(device),
            Joined::Mirror(mirror) => Some(mirror),
        }
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
        if self.is_fenced() { Some(DeviceLink::Failed) } else { self.device().link() }
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.device().sync_counts()
    }
}

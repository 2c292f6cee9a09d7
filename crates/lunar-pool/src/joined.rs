//! Concatenations and stripes of parts of devices: each block lies on one of them.

mod block_map;
mod labelled;
mod poison;
mod resize;
mod shapes;
mod sparse;

use crate::losses::LossLatch;
use crate::member_io::{in_own_context, join_changes, member_failed};
use block_map::MappedRun;
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink, Error, ErrorKind, Geometry,
    PoisonWatcher, RELAY_PARTS_MAX, RelayMap, RelayPart, Sparse, SyncCounts,
};
use poison::PoisonRelay;
use shapes::Shapes;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

pub(crate) use labelled::LabelledDevice;
pub(crate) use resize::SharedLabelledDevice;
pub use shapes::JoinedShape;

/// Consecutive blocks of a device.
#[derive(Clone, Debug)]
pub struct DeviceExtent {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// The blocks.
    pub blocks: BlockRange,
}

/// The order in which the blocks of several extents make one device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExtentOrder {
    /// The blocks of each extent follow those of the extent before.
    Linear,
    /// Stripe units of this number of blocks go to all extents in turn.
    Striped(NonZeroU64),
}

/// A device whose blocks lie on extents of other devices. Nothing else is written to these.
#[derive(Debug)]
pub struct JoinedDevice {
    name: String,
    shapes: Shapes,
    losses: Arc<LossLatch>,
    /// Losses that were counted once more, because a change was in flight.
    repeated_losses: Arc<AtomicU64>,
    buffers: OnceLock<BufferPool>,
    poison: Arc<PoisonRelay>,
}

impl JoinedDevice {
    /// Joins extents, of which one device may have several. `name` is the name in messages.
    ///
    /// # Errors
    /// `Open` if there is no extent, one is empty or has blocks past the end of its device, block
    /// lengths differ, or stripe units do not fit.
    pub fn new(name: &str, extents: &[DeviceExtent], order: ExtentOrder) -> Result<Self, Error> {
        let shape = JoinedShape::new(name, extents, order)?;
        let losses = Arc::new(LossLatch::new(shape.cache_losses().unwrap_or(0)));
        let poison = PoisonRelay::new(shape.devices().len());
        let (name, buffers) = (name.to_owned(), OnceLock::new());
        let repeated_losses = Arc::default();
        Ok(Self { name, shapes: Shapes::new(shape), losses, repeated_losses, buffers, poison })
    }

    /// Enlarges the device to `extents`, while it is in use. The blocks that it has stay where they
    /// are: a linear device may get a longer last extent and further ones, a striped one longer
    /// extents. New blocks have the data that is there.
    ///
    /// # Errors
    /// `Open` as of [`new`](Self::new), for other extents, and if the device was enlarged too often
    /// since it was opened.
    pub fn extend(&self, extents: &[DeviceExtent]) -> Result<(), Error> {
        let now = self.shape();
        let next = now.extended(&self.name, extents)?;
        // Calls do not overlap, and devices are only added.
        let known = now.devices().len();
        if let Some(buffers) = self.buffers.get() {
            next.devices()[known..].iter().for_each(|device| device.set_buffers(buffers));
        }
        if self.poison.is_watched() {
            self.watch_devices(&next, known);
        }
        match self.shapes.push(next) {
            true => Ok(()),
            false => {
                let what = "it was enlarged too often since it was opened";
                Err(Error::new(ErrorKind::Open, &*self.name, what))
            }
        }
    }

    /// Returns the device with the extent at `index` moved to `to`, which has the same data. Users
    /// are passed on to it: a flush of either device reports a loss that no flush has reported.
    /// `losses` is the count of losses that the device of `to` had when the data was durable there.
    ///
    /// # Errors
    /// `Open` if there is no such extent, or `to` has another length or block length.
    pub fn with_moved_extent(
        &self,
        index: usize,
        to: &DeviceExtent,
        losses: u64,
    ) -> Result<Self, Error> {
        let shape = self.shape().moved(&self.name, index, to, losses)?;
        let buffers = self.buffers.clone();
        if let Some(buffers) = buffers.get() {
            to.device.set_buffers(buffers);
        }
        let (name, losses) = (self.name.clone(), Arc::clone(&self.losses));
        let repeated_losses = Arc::clone(&self.repeated_losses);
        let poison = Arc::clone(&self.poison);
        if poison.is_watched() && !self.shape().has_device(&to.device) {
            to.device.watch_poison(PoisonRelay::of_new_member(&poison));
        }
        Ok(Self { name, shapes: Shapes::new(shape), losses, repeated_losses, buffers, poison })
    }

    /// Ends a change that several devices have made, one after the other, since the device had
    /// `losses`. A loss meanwhile may have hit this change, too, and a flush may have reported it
    /// before the change is acknowledged: it counts once more.
    pub fn change_ended(&self, losses: Option<u64>) {
        if self.cache_losses() != losses {
            self.repeated_losses.fetch_add(1, SeqCst);
        }
    }

    /// Returns the blocks of the extent at `index` that belong to `range`, which is within the
    /// device; counted from the beginning of the extent, and always consecutive.
    pub fn part_of_extent(&self, index: usize, range: BlockRange) -> BlockRange {
        self.shape().map().member_range(index, range)
    }

    /// Returns the bytes of a write of `range` that belong to the extent at `index`.
    pub fn data_of_extent(&self, index: usize, range: BlockRange, from: &Bytes) -> Bytes {
        let shape = self.shape();
        let part = shape.map().member_range(index, range);
        self.gathered(shape, range, from, (index, part))
    }

    fn watch_devices(&self, shape: &JoinedShape, first: usize) {
        for (index, device) in shape.devices().iter().enumerate().skip(first) {
            device.watch_poison(PoisonRelay::of_member(&self.poison, index));
        }
    }

    /// Returns the present shape.
    #[inline]
    pub fn shape(&self) -> &JoinedShape {
        self.shapes.last()
    }

    fn buffers(&self) -> &BufferPool {
        self.buffers.get_or_init(BufferPool::default)
    }

    fn block_bytes(&self) -> usize {
        self.geometry().block_bytes as usize
    }

    fn failed(&self, range: BlockRange) -> impl Fn(Error) -> Error {
        move |error| member_failed(&self.name, Some(range), error)
    }

    async fn read_parts(&self, range: BlockRange, mut into: Buffer) -> Result<Buffer, Error> {
        let (pool, shape) = (into.pool(), self.shape());
        let parts = shape.map().parts(range);
        let reads = parts.iter().map(|part| {
            let (device, part) = shape.on_device(*part);
            let own = pool.take(part.count as usize * self.block_bytes());
            in_own_context(device.read(part, own))
        });
        let read = try_join_all(reads).await.map_err(self.failed(range))?;
        for run in shape.map().runs(range) {
            let Some(at) = parts.iter().position(|(member, _)| *member == run.member) else {
                continue;
            };
            let from = self.bytes_in(run.member_lba - parts[at].1.lba, run.range.count);
            let to = self.bytes_in(run.range.lba - range.lba, run.range.count);
            into[to].copy_from_slice(&read[at][from]);
        }
        Ok(into)
    }

    /// Returns the bytes of `count` blocks behind the first `before` blocks of a buffer.
    fn bytes_in(&self, before: u64, count: u64) -> std::ops::Range<usize> {
        let block = self.block_bytes();
        before as usize * block..(before + count) as usize * block
    }

    async fn write_parts(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> Result<(), Error> {
        let (shape, losses) = (self.shape(), self.cache_losses());
        let writes = shape.map().parts(range).into_iter().map(|(member, part)| {
            let data = self.gathered(shape, range, &from, (member, part));
            let (device, part) = shape.on_device((member, part));
            device.write(part, data, durable)
        });
        let written = join_changes(writes.collect()).await;
        self.change_ended(losses);
        written.map_err(self.failed(range))
    }

    /// Returns the data of one member: shared if it is one run, else copied into a buffer.
    fn gathered(
        &self,
        shape: &JoinedShape,
        range: BlockRange,
        from: &Bytes,
        (member, part): (usize, BlockRange),
    ) -> Bytes {
        let source = |run: MappedRun| self.bytes_in(run.range.lba - range.lba, run.range.count);
        let mut runs = shape.map().runs(range).filter(|run| run.member == member);
        let Some(first) = runs.next() else { return Bytes::new() };
        if first.range.count == part.count {
            return from.slice(source(first));
        }
        let mut data = self.buffers().take(part.count as usize * self.block_bytes());
        for run in std::iter::once(first).chain(runs) {
            let to = self.bytes_in(run.member_lba - part.lba, run.range.count);
            data[to].copy_from_slice(&from[source(run)]);
        }
        data.freeze()
    }

    async fn flush_all(&self) -> Result<(), Error> {
        let flush = self.losses.begin();
        let devices = self.shape().devices().iter();
        let flushes = devices.map(|device| in_own_context(device.flush()));
        // All flushes end: a device that is left in the middle may report a loss to nobody.
        let flushed = join_all(flushes).await;
        let failed = flushed.into_iter().find_map(Result::err);
        let good = self.losses.end(flush, failed.is_none(), self.cache_losses().unwrap_or(0));
        match failed {
            Some(error) => Err(member_failed(&self.name, None, error)),
            None if good => Ok(()),
            None => {
                let what = "a member may have lost acknowledged writes that were not flushed";
                Err(Error::new(ErrorKind::Medium, &*self.name, what))
            }
        }
    }

    async fn recover_all(&self) -> Result<(), Error> {
        for device in self.shape().devices() {
            let recovered = device.recover().await;
            recovered.map_err(|error| member_failed(&self.name, None, error))?;
        }
        Ok(())
    }
}

impl RelayMap for JoinedDevice {
    fn add_parts(&self, range: BlockRange, is_write: bool, parts: &mut Vec<RelayPart>) -> bool {
        let shape = self.shape();
        shape.geometry().byte_range(range).is_some()
            && shape.runs(range).take(RELAY_PARTS_MAX + 1).all(|(device, run)| {
                device.relay_map().is_some_and(|map| map.add_parts(run, is_write, parts))
            })
            && parts.len() <= RELAY_PARTS_MAX
    }
}

impl BlockDevice for JoinedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.shape().geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        if let Err(error) = self.geometry().checked(&self.name, range, into.len(), false) {
            return Box::pin(std::future::ready(Err(error)));
        }
        match self.shape().only_part(range) {
            Some((device, part)) => {
                let read = device.read(part, into);
                Box::pin(async move { read.await.map_err(self.failed(range)) })
            }
            None => Box::pin(self.read_parts(range, into)),
        }
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        if self.geometry().checked(&self.name, range, into.len(), false).is_err() {
            return false;
        }
        let only = self.shape().only_part(range);
        only.is_some_and(|(device, part)| device.try_read_now(part, into))
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        if let Err(error) = self.geometry().checked(&self.name, range, from.len(), true) {
            return Box::pin(std::future::ready(Err(error)));
        }
        match self.shape().only_part(range) {
            Some((device, part)) => {
                let written = device.write(part, from, durable);
                Box::pin(async move { written.await.map_err(self.failed(range)) })
            }
            None => Box::pin(self.write_parts(range, from, durable)),
        }
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        if self.geometry().checked(&self.name, range, from.len(), true).is_err() {
            return false;
        }
        let only = self.shape().only_part(range);
        only.is_some_and(|(device, part)| device.try_write_now(part, from, durable))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.flush_all())
    }

    /// Counts the losses of all devices. A device that refuses all writes after a loss counts none:
    /// its flushes fail, and with them those of the joined device.
    fn cache_losses(&self) -> Option<u64> {
        let repeated = self.repeated_losses.load(SeqCst);
        self.shape().cache_losses().map(|losses| losses.wrapping_add(repeated))
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let _ = self.buffers.set(buffers.clone());
        self.shape().devices().iter().for_each(|device| device.set_buffers(buffers));
    }

    fn prefetch(&self, range: BlockRange) {
        let shape = self.shape();
        if shape.geometry().byte_range(range).is_some() {
            for part in shape.map().parts(range) {
                let (device, part) = shape.on_device(part);
                device.prefetch(part);
            }
        }
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.shape().devices().iter().all(|device| device.sparse().is_some()).then_some(self)
    }

    fn relay_map(&self) -> Option<&dyn RelayMap> {
        self.shape().devices().iter().all(|device| device.relay_map().is_some()).then_some(self)
    }

    fn is_read_only(&self) -> bool {
        self.shape().devices().iter().any(|device| device.is_read_only())
    }

    fn io_tier(&self) -> String {
        self.shape().io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.recover_all())
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.poison.watch(watcher);
        self.watch_devices(self.shape(), 0);
    }

    fn poison(&self) {
        self.shape().devices().iter().for_each(|device| device.poison());
    }

    fn link(&self) -> Option<DeviceLink> {
        worst_link(self.shape().devices())
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        let devices = self.shape().devices().iter();
        let counts: Vec<SyncCounts> = devices.filter_map(|device| device.sync_counts()).collect();
        let mut sum = *counts.first()?;
        for more in &counts[1..] {
            sum.durations.add(&more.durations);
            sum.requests += more.requests;
            sum.failures += more.failures;
            sum.poisoned |= more.poisoned;
        }
        Some(sum)
    }
}

/// Returns the worst state of the connections to devices of other machines.
fn worst_link(devices: &[Arc<dyn BlockDevice>]) -> Option<DeviceLink> {
    let order = |link: &DeviceLink| DeviceLink::ALL.iter().position(|other| other == link);
    devices.iter().filter_map(|device| device.link()).max_by_key(order)
}

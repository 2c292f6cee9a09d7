//! Concatenations and stripes: pools in which each block lies on one member.

mod block_map;
mod poison;
mod resize;
mod shapes;
mod sparse;

use crate::PoolError;
use crate::assembly::{Assembly, FoundMember};
use crate::format::{MemberSet, PoolId, PoolKind};
use crate::losses::LossLatch;
use crate::member_io::{in_own_context, member_failed};
use crate::status::{MemberState, PoolHealth, PoolMember, PoolStatus};
use block_map::{BlockMap, MappedRun};
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink, Error, ErrorKind, Geometry,
    OPTIMAL_TRANSFER_BYTES, PHYSICAL_BLOCK_BYTES_MAX, PoisonWatcher, Sparse, SyncCounts,
};
use poison::PoisonRelay;
pub(crate) use resize::SharedJoinedDevice;
use shapes::Shapes;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// Longest optimal transfer that a stripe reports: one stripe unit of each member.
const STRIPE_WIDTH_BYTES_MAX: u64 = 16 << 20;

/// An open concatenation or stripe.
#[derive(Debug)]
pub(crate) struct JoinedDevice {
    name: String,
    shapes: Shapes,
    members: Vec<JoinedMember>,
    /// The members with their labels, by place. Locked while the pool is resized.
    labelled: tokio::sync::Mutex<Vec<FoundMember>>,
    generation: AtomicU64,
    losses: LossLatch,
    buffers: OnceLock<BufferPool>,
    poison: Arc<PoisonRelay>,
}

#[derive(Debug)]
struct JoinedMember {
    device: Arc<dyn BlockDevice>,
    data_start: u64,
}

impl JoinedDevice {
    /// Opens a pool of which all members are present.
    pub(crate) fn open(name: &str, found: Assembly) -> Result<Self, PoolError> {
        found.require(MemberSet::first(found.newest.member_count))?;
        let label = found.oldest().clone();
        let present: Vec<FoundMember> = found.members.into_iter().flatten().collect();
        let map = if label.kind == PoolKind::CONCAT {
            BlockMap::concat(present.iter().map(|member| member.label.data_blocks))
        } else {
            BlockMap::Stripe {
                members: present.len() as u64,
                unit_blocks: label.unit_blocks,
                data_blocks: label.data_blocks,
            }
        };
        let members: Vec<JoinedMember> = present
            .iter()
            .map(|member| JoinedMember {
                data_start: member.device.layout().data_start(),
                device: Arc::clone(member.device.device()),
            })
            .collect();
        let geometry = geometry(name, &map, label.block_bytes, &members)?;
        let poison = PoisonRelay::new(members.len());
        let mut joined = Self {
            name: name.to_owned(),
            shapes: Shapes::new(geometry, map),
            members,
            labelled: tokio::sync::Mutex::new(present),
            generation: AtomicU64::new(label.generation),
            losses: LossLatch::new(0),
            buffers: OnceLock::new(),
            poison,
        };
        joined.losses = LossLatch::new(joined.cache_losses().unwrap_or(0));
        Ok(joined)
    }

    /// Returns the devices of the members, in order.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<dyn BlockDevice>> {
        self.members.iter().map(|member| &member.device)
    }

    pub(crate) fn status(&self, pool: PoolId, kind: PoolKind) -> PoolStatus {
        let is_failed = self.link() == Some(DeviceLink::Failed);
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
            pool,
            kind,
            generation: self.generation.load(SeqCst),
            health: if is_failed { PoolHealth::Failed } else { PoolHealth::Healthy },
            losses: self.cache_losses().unwrap_or(0),
            repairs: 0,
            copied_bytes: 0,
            members: (0..).zip(self.devices()).map(member).collect(),
            unused: Vec::new(),
            scrub: None,
        }
    }

    fn map(&self) -> &BlockMap {
        self.shapes.map()
    }

    fn buffers(&self) -> &BufferPool {
        self.buffers.get_or_init(BufferPool::default)
    }

    fn block_bytes(&self) -> usize {
        self.geometry().block_bytes as usize
    }

    /// Returns the member of a run, and its blocks on the device.
    #[inline]
    fn on_device(&self, run: MappedRun) -> (&dyn BlockDevice, BlockRange) {
        let (member, part) = (&self.members[run.member], run.member_range());
        (&*member.device, BlockRange::new(member.data_start + part.lba, part.count))
    }

    /// Returns the members with a part of `range`, and their blocks on the device.
    fn parts_on_devices(&self, range: BlockRange) -> Vec<(&dyn BlockDevice, BlockRange)> {
        let parts = self.map().parts(range).into_iter();
        let on_device = |(member, part): (usize, BlockRange)| {
            let member = &self.members[member];
            (&*member.device, BlockRange::new(member.data_start + part.lba, part.count))
        };
        parts.map(on_device).collect()
    }

    fn failed(&self, range: BlockRange) -> impl Fn(Error) -> Error {
        move |error| member_failed(&self.name, Some(range), error)
    }

    async fn read_parts(&self, range: BlockRange, mut into: Buffer) -> Result<Buffer, Error> {
        let pool = into.pool();
        let parts = self.map().parts(range);
        let reads = self.parts_on_devices(range).into_iter().map(|(device, part)| {
            let own = pool.take(part.count as usize * self.block_bytes());
            in_own_context(device.read(part, own))
        });
        let read = try_join_all(reads).await.map_err(self.failed(range))?;
        for run in self.map().runs(range) {
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
        let writes = self.map().parts(range).into_iter().map(|(member, part)| {
            let data = self.gathered(range, &from, member, part);
            let JoinedMember { device, data_start } = &self.members[member];
            let part = BlockRange::new(data_start + part.lba, part.count);
            in_own_context(device.write(part, data, durable))
        });
        // All parts end, so that nothing is written behind a result.
        let failed = join_all(writes).await.into_iter().find_map(Result::err);
        failed.map_or(Ok(()), |error| Err(member_failed(&self.name, Some(range), error)))
    }

    /// Returns the data of one member: shared if it is one run, else copied into a buffer.
    fn gathered(&self, range: BlockRange, from: &Bytes, member: usize, part: BlockRange) -> Bytes {
        let source = |run: MappedRun| self.bytes_in(run.range.lba - range.lba, run.range.count);
        let mut runs = self.map().runs(range).filter(|run| run.member == member);
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
        let members = self.members.iter();
        let flushes = members.map(|member| in_own_context(member.device.flush()));
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
        for member in &self.members {
            let recovered = member.device.recover().await;
            recovered.map_err(|error| member_failed(&self.name, None, error))?;
        }
        Ok(())
    }
}

/// Returns the geometry of a pool: the longest physical block of its members, if units begin at
/// physical blocks, and the stripe width as optimal transfer.
fn geometry(
    name: &str,
    map: &BlockMap,
    block_bytes: u32,
    members: &[JoinedMember],
) -> Result<Geometry, PoolError> {
    let of = |member: &JoinedMember| member.device.geometry();
    let longest = members.iter().map(|member| of(member).physical_block_bytes).max();
    let longest = longest.unwrap_or(block_bytes).min(PHYSICAL_BLOCK_BYTES_MAX);
    // Greatest power of two that divides the first block of every unit or member.
    let alignment = match map {
        BlockMap::Stripe { unit_blocks, .. } => *unit_blocks,
        BlockMap::Concat { starts } => {
            let inner = starts.iter().take(starts.len() - 1).skip(1);
            1 << inner.map(|start| start.trailing_zeros()).min().unwrap_or(0).min(16)
        }
    };
    let aligned = u64::from(block_bytes) << alignment.trailing_zeros().min(16);
    let physical = u64::from(longest).min(aligned) as u32;
    let size_bytes = map.block_count() * u64::from(block_bytes);
    let mut geometry = Geometry::new(name, size_bytes, block_bytes, physical)?;
    let width = match map {
        BlockMap::Stripe { members, unit_blocks, .. } => {
            unit_blocks.saturating_mul(*members).saturating_mul(u64::from(block_bytes))
        }
        BlockMap::Concat { .. } => {
            let first = of(&members[0]).optimal_transfer_bytes;
            let same = members.iter().all(|m| of(m).optimal_transfer_bytes == first);
            u64::from(if same { first } else { OPTIMAL_TRANSFER_BYTES })
        }
    };
    let fits = width <= STRIPE_WIDTH_BYTES_MAX && width.is_multiple_of(u64::from(physical));
    geometry.optimal_transfer_bytes = if fits { width as u32 } else { OPTIMAL_TRANSFER_BYTES };
    Ok(geometry)
}

impl BlockDevice for JoinedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.shapes.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        if let Err(error) = self.geometry().checked(&self.name, range, into.len(), false) {
            return Box::pin(std::future::ready(Err(error)));
        }
        match self.map().only_run(range) {
            Some(run) => {
                let (device, part) = self.on_device(run);
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
        self.map().only_run(range).is_some_and(|run| {
            let (device, part) = self.on_device(run);
            device.try_read_now(part, into)
        })
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
        match self.map().only_run(range) {
            Some(run) => {
                let (device, part) = self.on_device(run);
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
        self.map().only_run(range).is_some_and(|run| {
            let (device, part) = self.on_device(run);
            device.try_write_now(part, from, durable)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.flush_all())
    }

    /// Counts the losses of all members. A member that refuses all writes after a loss counts none:
    /// its flushes fail, and with them those of the pool.
    fn cache_losses(&self) -> Option<u64> {
        let counts = self.members.iter().filter_map(|member| member.device.cache_losses());
        counts.fold(None, |sum, count| Some(sum.unwrap_or(0) + count))
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let _ = self.buffers.set(buffers.clone());
        self.members.iter().for_each(|member| member.device.set_buffers(buffers));
    }

    fn prefetch(&self, range: BlockRange) {
        if self.geometry().byte_range(range).is_some() {
            for (device, part) in self.parts_on_devices(range) {
                device.prefetch(part);
            }
        }
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.members.iter().all(|member| member.device.sparse().is_some()).then_some(self)
    }

    fn is_read_only(&self) -> bool {
        self.members.iter().any(|member| member.device.is_read_only())
    }

    fn io_tier(&self) -> String {
        let (count, tier) = (self.members.len(), self.members[0].device.io_tier());
        match self.map() {
            BlockMap::Concat { .. } => format!("concat of {count}, {tier}"),
            BlockMap::Stripe { .. } => format!("stripe of {count}, {tier}"),
        }
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.recover_all())
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.poison.watch(watcher);
        for (place, member) in self.members.iter().enumerate() {
            member.device.watch_poison(PoisonRelay::of_member(&self.poison, place));
        }
    }

    fn poison(&self) {
        self.members.iter().for_each(|member| member.device.poison());
    }

    fn link(&self) -> Option<DeviceLink> {
        worst_link(self.devices())
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        let counts: Vec<SyncCounts> =
            self.devices().filter_map(|device| device.sync_counts()).collect();
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
fn worst_link<'a>(devices: impl Iterator<Item = &'a Arc<dyn BlockDevice>>) -> Option<DeviceLink> {
    let order = |link: &DeviceLink| DeviceLink::ALL.iter().position(|other| other == link);
    devices.filter_map(|device| device.link()).max_by_key(order)
}

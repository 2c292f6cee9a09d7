//! The shape of a joined device, which may grow while it is in use.

use super::block_map::{BlockMap, MappedRun};
use super::{DeviceExtent, ExtentOrder};
use lunar_block::{
    BlockDevice, BlockRange, Error, ErrorKind, Geometry, OPTIMAL_TRANSFER_BYTES,
    PHYSICAL_BLOCK_BYTES_MAX,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of changes of the size between two openings.
const GROWTHS_MAX: usize = 31;
/// Maximum size of a joined device, as of every disk.
const SIZE_BYTES_MAX: u64 = i64::MAX as u64;
/// Longest optimal transfer that a stripe reports: one stripe unit of each extent.
const STRIPE_WIDTH_BYTES_MAX: u64 = 16 << 20;
/// Largest alignment of extents that is considered, in powers of two of a block.
const ALIGNMENT_SHIFT_MAX: u32 = 16;

/// The extents of a joined device, and the map of its blocks to them.
#[derive(Debug)]
pub struct JoinedShape {
    geometry: Geometry,
    map: BlockMap,
    members: Vec<JoinedMember>,
    /// The devices of the members, each once.
    devices: Vec<Arc<dyn BlockDevice>>,
    /// Added to the losses of the devices, modulo 2^64: losses of former devices, less those that
    /// devices had before they got an extent.
    former_losses: u64,
}

/// The device of an extent, and its first block there.
#[derive(Debug)]
struct JoinedMember {
    device: Arc<dyn BlockDevice>,
    data_start: u64,
}

impl JoinedShape {
    pub(super) fn new(
        name: &str,
        extents: &[DeviceExtent],
        order: ExtentOrder,
    ) -> Result<Self, Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Open, name, what));
        let Some(first) = extents.first() else { return refuse("it has no extent".into()) };
        let block_bytes = first.device.geometry().block_bytes;
        let mut count = 0u64;
        for DeviceExtent { device, blocks } in extents {
            let geometry = device.geometry();
            if geometry.block_bytes != block_bytes {
                return refuse(format!(
                    "the blocks of {} have {} bytes, and those of {} {block_bytes}",
                    device.name(),
                    geometry.block_bytes,
                    first.device.name()
                ));
            }
            if blocks.count == 0 || geometry.byte_range(*blocks).is_none() {
                return refuse(format!(
                    "{} has {} blocks, and the extent has {} blocks from block {} on",
                    device.name(),
                    geometry.block_count,
                    blocks.count,
                    blocks.lba
                ));
            }
            count = count.saturating_add(blocks.count);
        }
        if count > SIZE_BYTES_MAX / u64::from(block_bytes) {
            return refuse(format!("its {count} blocks are too many"));
        }
        let counts = extents.iter().map(|extent| extent.blocks.count);
        let map = match order {
            ExtentOrder::Linear => BlockMap::concat(counts),
            ExtentOrder::Striped(unit) => {
                let (unit_blocks, data_blocks) = (unit.get(), first.blocks.count);
                if counts.clone().any(|count| count != data_blocks) {
                    return refuse("the extents of a stripe must have the same length".into());
                }
                if !data_blocks.is_multiple_of(unit_blocks) {
                    return refuse(format!(
                        "the extents of a stripe have {data_blocks} blocks, which is no multiple \
                         of the stripe unit of {unit_blocks}"
                    ));
                }
                BlockMap::Stripe { members: extents.len() as u64, unit_blocks, data_blocks }
            }
        };
        let geometry = geometry(name, &map, block_bytes, extents)?;
        Ok(Self::of(geometry, map, extents))
    }

    fn of(geometry: Geometry, map: BlockMap, extents: &[DeviceExtent]) -> Self {
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for extent in extents {
            if !devices.iter().any(|device| is_same_device(device, &extent.device)) {
                devices.push(Arc::clone(&extent.device));
            }
        }
        let member = |extent: &DeviceExtent| JoinedMember {
            device: Arc::clone(&extent.device),
            data_start: extent.blocks.lba,
        };
        let members = extents.iter().map(member).collect();
        Self { geometry, map, members, devices, former_losses: 0 }
    }

    /// Returns the shape with one extent elsewhere. The device of `to` had `losses` when the data
    /// was durable there.
    pub(super) fn moved(
        &self,
        name: &str,
        index: usize,
        to: &DeviceExtent,
        losses: u64,
    ) -> Result<Self, Error> {
        let mut extents = self.extents();
        let Some(extent) = extents.get_mut(index) else {
            return Err(Error::new(ErrorKind::Open, name, format!("it has no extent {index}")));
        };
        if extent.blocks.count != to.blocks.count {
            let what = format!(
                "the extent has {} blocks, and its destination {}",
                extent.blocks.count, to.blocks.count
            );
            return Err(Error::new(ErrorKind::Open, name, what));
        }
        *extent = to.clone();
        let next = Self::new(name, &extents, self.order())?;
        // A loss of a device that stays is counted in both shapes, whenever it occurs.
        let gone = self.devices.iter().filter(|device| !next.has_device(device));
        let losses_of_gone: u64 = gone.filter_map(|device| device.cache_losses()).sum();
        let losses_of_new = if self.has_device(&to.device) { 0 } else { losses };
        let former_losses =
            self.former_losses.wrapping_add(losses_of_gone).wrapping_sub(losses_of_new);
        Ok(Self { geometry: self.geometry, former_losses, ..next })
    }

    /// True if an extent lies on this device.
    pub(super) fn has_device(&self, device: &Arc<dyn BlockDevice>) -> bool {
        self.devices.iter().any(|other| is_same_device(device, other))
    }

    /// Returns a larger shape, in which all blocks of this one are where they were.
    pub(super) fn extended(&self, name: &str, extents: &[DeviceExtent]) -> Result<Self, Error> {
        let next = Self::new(name, extents, self.order())?;
        let before = self.extents();
        let last = before.len() - 1;
        let is_striped = self.order() != ExtentOrder::Linear;
        let stays = |(at, old): (usize, &DeviceExtent)| {
            extents.get(at).is_some_and(|new| {
                let may_grow = at == last || is_striped;
                is_same_device(&old.device, &new.device)
                    && old.blocks.lba == new.blocks.lba
                    && (old.blocks.count == new.blocks.count
                        || (may_grow && old.blocks.count < new.blocks.count))
            })
        };
        let has_all = before.iter().enumerate().all(stays);
        if !has_all || (is_striped && extents.len() != before.len()) {
            let what = "its blocks would be elsewhere: it can only be extended at its end";
            return Err(Error::new(ErrorKind::Open, name, what));
        }
        // Users rely on all but the number of blocks.
        let geometry = Geometry { block_count: next.geometry.block_count, ..self.geometry };
        let new = next.devices.iter().filter(|device| !self.has_device(device));
        let losses_of_new: u64 = new.filter_map(|device| device.cache_losses()).sum();
        let former_losses = self.former_losses.wrapping_sub(losses_of_new);
        Ok(Self { geometry, former_losses, ..next })
    }

    pub(super) fn order(&self) -> ExtentOrder {
        match &self.map {
            BlockMap::Concat { .. } => ExtentOrder::Linear,
            BlockMap::Stripe { unit_blocks, .. } => std::num::NonZeroU64::new(*unit_blocks)
                .map_or(ExtentOrder::Linear, ExtentOrder::Striped),
        }
    }

    /// Returns the extents, in order.
    pub fn extents(&self) -> Vec<DeviceExtent> {
        let all = BlockRange::new(0, self.geometry.block_count);
        let extent = |(index, member): (usize, &JoinedMember)| DeviceExtent {
            device: Arc::clone(&member.device),
            blocks: BlockRange::new(member.data_start, self.map.member_range(index, all).count),
        };
        self.members.iter().enumerate().map(extent).collect()
    }

    /// Returns the parts of `range`, which is within the device, as blocks of the devices that they
    /// lie on: one part for each extent. The bytes of a part may be in several parts of the range.
    pub fn parts(
        &self,
        range: BlockRange,
    ) -> impl Iterator<Item = (&Arc<dyn BlockDevice>, BlockRange)> {
        let parts = self.map.parts(range).into_iter();
        parts.map(|(member, part)| {
            let member = &self.members[member];
            (&member.device, BlockRange::new(member.data_start + part.lba, part.count))
        })
    }

    /// Returns the runs of `range`, which is within the device, in order, as blocks of the devices.
    pub(super) fn runs(
        &self,
        range: BlockRange,
    ) -> impl Iterator<Item = (&dyn BlockDevice, BlockRange)> {
        self.map.runs(range).map(|run| self.on_device((run.member, run.member_range())))
    }

    #[inline]
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[inline]
    pub(super) fn map(&self) -> &BlockMap {
        &self.map
    }

    /// Returns the devices, each once.
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        &self.devices
    }

    /// Returns the device of an extent, and its first block there.
    #[inline]
    pub(super) fn member(&self, index: usize) -> (&dyn BlockDevice, u64) {
        (&*self.members[index].device, self.members[index].data_start)
    }

    /// Returns the device of a part of an extent, and the blocks there.
    #[inline]
    pub(super) fn on_device(
        &self,
        (member, part): (usize, BlockRange),
    ) -> (&dyn BlockDevice, BlockRange) {
        let (device, data_start) = self.member(member);
        (device, BlockRange::new(data_start + part.lba, part.count))
    }

    /// Returns the device and the blocks there if `range` is one run on one extent.
    #[inline]
    pub(super) fn only_part(&self, range: BlockRange) -> Option<(&dyn BlockDevice, BlockRange)> {
        let run: MappedRun = self.map.only_run(range)?;
        Some(self.on_device((run.member, run.member_range())))
    }

    pub(super) fn cache_losses(&self) -> Option<u64> {
        let counts = self.devices.iter().filter_map(|device| device.cache_losses());
        let former = Some(self.former_losses).filter(|losses| *losses != 0);
        counts.fold(former, |sum, count| Some(sum.unwrap_or(0).wrapping_add(count)))
    }

    pub(super) fn io_tier(&self) -> String {
        let (count, tier) = (self.members.len(), self.members[0].device.io_tier());
        match self.map {
            BlockMap::Concat { .. } => format!("concat of {count}, {tier}"),
            BlockMap::Stripe { .. } => format!("stripe of {count}, {tier}"),
        }
    }
}

fn is_same_device(one: &Arc<dyn BlockDevice>, other: &Arc<dyn BlockDevice>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Returns the geometry of a joined device: the longest physical block of its devices, as far as
/// extents and stripe units begin at physical blocks, and the stripe width as optimal transfer.
fn geometry(
    name: &str,
    map: &BlockMap,
    block_bytes: u32,
    extents: &[DeviceExtent],
) -> Result<Geometry, Error> {
    let geometry_of = |extent: &DeviceExtent| extent.device.geometry();
    let longest = extents.iter().map(|extent| geometry_of(extent).physical_block_bytes).max();
    let longest = longest.unwrap_or(block_bytes).min(PHYSICAL_BLOCK_BYTES_MAX);
    // Power of two that divides the first block of every unit and extent, here and on its device.
    let firsts = extents.iter().map(|extent| extent.blocks.lba);
    let shift = match map {
        BlockMap::Stripe { unit_blocks, .. } => {
            firsts.fold(*unit_blocks, |bits, first| bits | first).trailing_zeros()
        }
        BlockMap::Concat { starts } => {
            firsts.zip(starts).fold(0, |bits, (first, start)| bits | first | start).trailing_zeros()
        }
    };
    let aligned = u64::from(block_bytes) << shift.min(ALIGNMENT_SHIFT_MAX);
    let physical = u64::from(longest).min(aligned) as u32;
    let size_bytes = map.block_count() * u64::from(block_bytes);
    let mut geometry = Geometry::new(name, size_bytes, block_bytes, physical)?;
    let width = match map {
        BlockMap::Stripe { members, unit_blocks, .. } => {
            unit_blocks.saturating_mul(*members).saturating_mul(u64::from(block_bytes))
        }
        BlockMap::Concat { .. } => {
            let first = geometry_of(&extents[0]).optimal_transfer_bytes;
            let same =
                extents.iter().all(|extent| geometry_of(extent).optimal_transfer_bytes == first);
            u64::from(if same { first } else { OPTIMAL_TRANSFER_BYTES })
        }
    };
    let fits = width <= STRIPE_WIDTH_BYTES_MAX && width.is_multiple_of(u64::from(physical));
    geometry.optimal_transfer_bytes = if fits { width as u32 } else { OPTIMAL_TRANSFER_BYTES };
    Ok(geometry)
}

/// The shapes of a joined device, one after the other. Transfers read the last one without a lock;
/// an earlier one is right for all blocks that it has.
#[derive(Debug)]
pub(super) struct Shapes {
    first: JoinedShape,
    later: [OnceLock<Box<JoinedShape>>; GROWTHS_MAX],
    /// Number of later shapes.
    growths: AtomicUsize,
}

impl Shapes {
    pub(super) fn new(first: JoinedShape) -> Self {
        let later = std::array::from_fn(|_| OnceLock::new());
        Self { first, later, growths: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn last(&self) -> &JoinedShape {
        // A shape is set before it is counted.
        let last = self.growths.load(Ordering::Acquire).checked_sub(1);
        last.and_then(|last| self.later[last].get()).map_or(&self.first, |shape| &**shape)
    }

    /// True if the device can grow once more before it is opened again.
    pub(super) fn has_room(&self) -> bool {
        self.growths.load(Ordering::Acquire) < GROWTHS_MAX
    }

    /// Adds a shape; calls do not overlap. Returns false if there are too many.
    pub(super) fn push(&self, shape: JoinedShape) -> bool {
        let next = self.growths.load(Ordering::Acquire);
        let is_set = self.later.get(next).is_some_and(|cell| cell.set(Box::new(shape)).is_ok());
        if is_set {
            self.growths.store(next + 1, Ordering::Release);
        }
        is_set
    }
}

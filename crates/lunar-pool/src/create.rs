//! Creates pools: checks the devices and writes the first labels.

use crate::PoolError;
use crate::format::{
    History, IntentPage, Label, MEMBERS_MAX, MEMBERS_MIN, MemberSet, PoolId, PoolKind, RegionSet,
    region_blocks,
};
use crate::member_device::MemberDevice;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool};
use std::sync::Arc;

/// Stripe unit of a new pool, if none is given.
pub const STRIPE_UNIT_BYTES: u32 = 64 << 10;

/// Maximum stripe unit.
pub const STRIPE_UNIT_BYTES_MAX: u32 = 1 << 30;

/// Last sequence number of the intent pages of a new mirror; pages of later writes have higher
/// ones.
pub(crate) const NEW_SEQUENCE_MAX: u64 = 1;

/// The kind of a new pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolSpec {
    /// The blocks of each member follow those of the member before.
    Concat,
    /// Consecutive blocks go to all members in turn (RAID 0).
    Stripe {
        /// Length of a stripe unit: a multiple of the physical block of all members.
        unit_bytes: u32,
    },
    /// All members have the same blocks (RAID 1).
    Mirror {
        /// True to deallocate all blocks, so that the members are equal from the beginning. False:
        /// the first opening copies the first member to the others.
        erase: bool,
    },
}

impl PoolSpec {
    fn kind(self) -> PoolKind {
        match self {
            Self::Concat => PoolKind::CONCAT,
            Self::Stripe { .. } => PoolKind::STRIPE,
            Self::Mirror { .. } => PoolKind::MIRROR,
        }
    }
}

/// Labels devices as the members of a new pool, in their order. Their data is lost.
///
/// # Errors
/// The device that does not fit; nothing is written then. `Device` when a device failed.
pub(crate) async fn create(
    spec: PoolSpec,
    devices: Vec<Arc<dyn BlockDevice>>,
) -> Result<PoolId, PoolError> {
    let buffers = BufferPool::default();
    let members: Vec<MemberDevice> = devices.into_iter().map(MemberDevice::new).collect();
    for (index, member) in members.iter().enumerate() {
        if members[..index].iter().any(|other| Arc::ptr_eq(other.device(), member.device())) {
            return Err(PoolError::NamedTwice { device: member.name().to_owned() });
        }
        if member.device().is_read_only() {
            return Err(PoolError::ReadOnly { device: member.name().to_owned() });
        }
    }
    let labels = first_labels(spec, &members)?;
    for member in &members {
        member.refuse_labelled(&buffers).await?;
    }
    if spec == (PoolSpec::Mirror { erase: true }) {
        erase(&members, &labels[0]).await?;
    }
    for (member, label) in members.iter().zip(&labels) {
        if label.kind == PoolKind::MIRROR {
            write_first_intents(member, label, spec != PoolSpec::Mirror { erase: true }).await?;
        }
        member.write_label(label, &buffers).await?;
    }
    Ok(labels[0].pool)
}

/// Returns the labels of a new pool, in the order of its members.
fn first_labels(spec: PoolSpec, members: &[MemberDevice]) -> Result<Vec<Label>, PoolError> {
    let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
    if !(MEMBERS_MIN..=MEMBERS_MAX).contains(&count) {
        return Err(PoolError::MemberCount(members.len()));
    }
    let block_bytes = members[0].layout().block_bytes;
    for member in members {
        let (device, layout) = (member.name().to_owned(), member.layout());
        if layout.block_bytes != block_bytes {
            let (block_bytes, other_bytes) = (layout.block_bytes, block_bytes);
            return Err(PoolError::BlockLength { device, block_bytes, other_bytes });
        }
        if layout.data_blocks_max() == 0 {
            return Err(PoolError::TooSmall { device, need_blocks: None });
        }
    }
    let (data_blocks, unit_blocks) = sizes(spec, members)?;
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|error| {
        let what = "there are no random numbers";
        lunar_block::Error::new(lunar_block::ErrorKind::Open, members[0].name(), what)
            .because(error)
    })?;
    let mut id = [0; 16];
    id.copy_from_slice(&random[..16]);
    let label = |slot: u16, data_blocks: u64| Label {
        kind: spec.kind(),
        pool: PoolId::from_random(id),
        slot,
        member_count: count,
        block_bytes,
        data_blocks,
        unit_blocks,
        generation: 1,
        current: MemberSet::first(count),
        history: History::new(id_from(&random[16..])),
        vacant: MemberSet::default(),
    };
    let labels: Vec<Label> = (0..count).zip(data_blocks).map(|(at, n)| label(at, n)).collect();
    let fits =
        labels.iter().zip(members).all(|(label, member)| label.check(member.layout()).is_ok());
    if fits { Ok(labels) } else { Err(PoolError::TooLarge) }
}

/// Returns the number of blocks of data of each member, and the unit.
fn sizes(spec: PoolSpec, members: &[MemberDevice]) -> Result<(Vec<u64>, u64), PoolError> {
    let block_bytes = members[0].layout().block_bytes;
    let room = |member: &MemberDevice| member.layout().data_blocks_max();
    let physical = |member: &MemberDevice| member.device().geometry().physical_block_bytes;
    let physical_block_bytes = members.iter().map(physical).max().unwrap_or(block_bytes);
    let smallest_blocks = members.iter().map(room).min().unwrap_or(0);
    let too_small = |member: &MemberDevice, data_blocks: u64| PoolError::TooSmall {
        device: member.name().to_owned(),
        need_blocks: member.layout().member_blocks(data_blocks),
    };
    match spec {
        PoolSpec::Mirror { .. } => {
            let smallest_blocks = smallest_blocks.min(i64::MAX as u64 / u64::from(block_bytes));
            Ok((vec![smallest_blocks; members.len()], region_blocks(block_bytes, smallest_blocks)))
        }
        PoolSpec::Stripe { unit_bytes } => {
            let fits = unit_bytes <= STRIPE_UNIT_BYTES_MAX
                && unit_bytes > 0
                && unit_bytes.is_multiple_of(physical_block_bytes);
            if !fits {
                return Err(PoolError::Unit { unit_bytes, physical_block_bytes });
            }
            let unit_blocks = u64::from(unit_bytes / block_bytes);
            let data_blocks_max = i64::MAX as u64 / u64::from(block_bytes) / members.len() as u64;
            let data_blocks = smallest_blocks.min(data_blocks_max) / unit_blocks * unit_blocks;
            let small = members.iter().find(|member| room(member) < unit_blocks);
            match small {
                Some(member) => Err(too_small(member, unit_blocks)),
                None => Ok((vec![data_blocks; members.len()], unit_blocks)),
            }
        }
        PoolSpec::Concat => {
            let align = u64::from(physical_block_bytes / block_bytes);
            let mut data_blocks: Vec<u64> = members.iter().map(room).collect();
            // Physical blocks of the pool begin at physical blocks of every member.
            let last = data_blocks.len() - 1;
            data_blocks[..last].iter_mut().for_each(|blocks| *blocks -= *blocks % align);
            if let Some(at) = data_blocks.iter().position(|blocks| *blocks == 0) {
                return Err(too_small(&members[at], align));
            }
            let sum = data_blocks.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
            sum.map(|sum| (data_blocks, sum)).ok_or(PoolError::TooLarge)
        }
    }
}

/// Makes all data read as zeroes, durably, on each device.
async fn erase(members: &[MemberDevice], label: &Label) -> Result<(), PoolError> {
    for member in members {
        let not_erasable = || PoolError::NotErasable { device: member.name().to_owned() };
        member.device().sparse().ok_or_else(not_erasable)?;
    }
    for member in members {
        let data = BlockRange::new(member.layout().data_start(), label.data_blocks);
        if let Some(sparse) = member.device().sparse() {
            sparse.unmap(data, false).await?;
        }
        member.flush().await?;
    }
    Ok(())
}

/// Writes the first intent pages. If the contents of the members are unknown, all regions are
/// marked: the first opening copies them, as after a power cut.
async fn write_first_intents(
    member: &MemberDevice,
    label: &Label,
    marked: bool,
) -> Result<(), PoolError> {
    let regions = label.regions();
    let marked = if marked { RegionSet::full(regions) } else { RegionSet::new(regions) };
    for sequence in 0..=NEW_SEQUENCE_MAX {
        let page = IntentPage { pool: label.pool, sequence, marked: marked.clone() };
        member.write_intent(sequence, Bytes::copy_from_slice(&page.encode())).await?;
    }
    Ok(())
}

/// Returns an id from 8 random bytes: positive, as Java needs it.
fn id_from(random: &[u8]) -> u64 {
    let number = random.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    (number >> 1).max(1)
}

/// Draws a random id, such as that of a new generation.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn random_id() -> Result<u64, getrandom::Error> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)?;
    Ok(id_from(&random))
}

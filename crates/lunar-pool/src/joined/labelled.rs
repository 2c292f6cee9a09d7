//! A concatenation or a stripe whose members have labels.

use super::{DeviceExtent, ExtentOrder, JoinedDevice};
use crate::PoolError;
use crate::assembly::{Assembly, FoundMember};
use crate::format::{MemberSet, PoolId, PoolKind};
use crate::status::{MemberState, PoolHealth, PoolMember, PoolStatus};
use lunar_block::{BlockDevice, BlockRange, DeviceLink, Error, ErrorKind};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An open concatenation or stripe.
#[derive(Debug)]
pub(crate) struct LabelledDevice {
    pub(super) joined: JoinedDevice,
    /// The members with their labels, by slot. Locked while the pool is resized.
    pub(super) labelled: tokio::sync::Mutex<Vec<FoundMember>>,
    pub(super) generation: AtomicU64,
}

impl LabelledDevice {
    /// Opens a pool of which all members are present.
    pub(crate) fn open(name: &str, found: Assembly) -> Result<Self, PoolError> {
        found.require(MemberSet::first(found.newest.member_count))?;
        let label = found.oldest().clone();
        let present: Vec<FoundMember> = found.members.into_iter().flatten().collect();
        let order = match NonZeroU64::new(label.unit_blocks) {
            _ if label.kind == PoolKind::CONCAT => ExtentOrder::Linear,
            Some(unit_blocks) => ExtentOrder::Striped(unit_blocks),
            None => {
                let what = "its label has an empty stripe unit";
                return Err(Error::new(ErrorKind::Open, name, what).into());
            }
        };
        let extents: Vec<DeviceExtent> = present
            .iter()
            .map(|member| {
                data_extent(
                    member,
                    match order {
                        ExtentOrder::Linear => member.label.data_blocks,
                        ExtentOrder::Striped(_) => label.data_blocks,
                    },
                )
            })
            .collect();
        Ok(Self {
            joined: JoinedDevice::new(name, &extents, order)?,
            labelled: tokio::sync::Mutex::new(present),
            generation: AtomicU64::new(label.generation),
        })
    }

    /// Returns the device that users see.
    pub(crate) fn joined(&self) -> &JoinedDevice {
        &self.joined
    }

    pub(crate) fn status(&self, pool: PoolId, kind: PoolKind) -> PoolStatus {
        let is_failed = self.joined.link() == Some(DeviceLink::Failed);
        let member = |(slot, device): (u16, &Arc<dyn BlockDevice>)| PoolMember {
            slot,
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
            losses: self.joined.cache_losses().unwrap_or(0),
            repairs: 0,
            copied_bytes: 0,
            members: (0..).zip(self.joined.shape().devices()).map(member).collect(),
            unused: Vec::new(),
            scrub: None,
        }
    }
}

/// Returns the blocks of a member that have data of the pool.
pub(super) fn data_extent(member: &FoundMember, data_blocks: u64) -> DeviceExtent {
    let blocks = BlockRange::new(member.device.layout().data_start(), data_blocks);
    DeviceExtent { device: Arc::clone(member.device.device()), blocks }
}

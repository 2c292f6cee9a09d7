//! The return of members whose devices were missing when the mirror was opened.
//!
//! Nothing is written to the device before it has its slot. The member is then stale, as if the
//! mirror had been opened with it.

use super::Mirror;
use super::member::MirrorMember;
use super::slots::MemberSlot;
use crate::PoolError;
use crate::error::SplitMirror;
use crate::format::{FoundLabel, Label};
use crate::member_device::MemberDevice;
use lunar_block::BlockDevice;
use std::sync::Arc;

impl Mirror {
    /// Gives a device with a label the slot that it names, if the member there is missing. Returns
    /// the slot; the copy to the device runs in a task.
    pub(super) async fn rejoin(
        self: Arc<Self>,
        device: Arc<dyn BlockDevice>,
    ) -> Result<u16, PoolError> {
        let mut former = self.reshaping.lock().await;
        let device = MemberDevice::new(device).fenced(self.ownership.fence());
        let given = Arc::clone(device.given());
        self.returning_slot(&device).await?;
        if former.has_open_changes(&given) {
            return Err(PoolError::Unsettled { device: device.name().to_owned() });
        }
        let is_acquired = self.acquire_member(&device).await?;
        let slot = self.reinstate(device).await;
        if is_acquired && slot.is_err() {
            self.ownership.give_back(&given).await;
        }
        slot
    }

    /// Returns the slot of a member that may return, and its number of regions.
    async fn returning_slot(&self, device: &MemberDevice) -> Result<(u16, u32), PoolError> {
        let name = || device.name().to_owned();
        let buffers = self.buffers();
        let read = async { Ok(device.read_label(&buffers).await?) };
        let label = match self.in_time(device, read).await? {
            FoundLabel::None => return Err(PoolError::NotAMember { device: name() }),
            FoundLabel::Unusable(why) => return Err(PoolError::Unusable { device: name(), why }),
            FoundLabel::Valid(label) => label,
        };
        let newest = self.recorded().await?.label.clone();
        self.check_label(device, &label, &newest)?;
        self.check_fits(device, &newest)?;
        Ok((label.slot, newest.regions()))
    }

    /// Gives an acquired device the slot that its label names. A former owner may have written to
    /// it until now, so its label is read again.
    async fn reinstate(self: &Arc<Self>, device: MemberDevice) -> Result<u16, PoolError> {
        let (slot, regions) = self.returning_slot(&device).await?;
        device.device().set_buffers(&self.buffers());
        let wait = self.options.member_wait;
        let member = Arc::new(MirrorMember::new(slot, device, false, regions, wait));
        let roster = self.roster.write().await;
        self.refuse_closed(roster.is_closed)?;
        self.slots.set(slot, MemberSlot::Taken(Arc::clone(&member)));
        drop(roster);
        tracing::info!("{}: {} is member {slot} again", self.name, member.device.name());
        self.recover_stale();
        Ok(slot)
    }

    /// Fails unless the label is that of a missing member to which nothing was written without the
    /// other members.
    fn check_label(
        &self,
        device: &MemberDevice,
        label: &Label,
        newest: &Label,
    ) -> Result<(), PoolError> {
        let name = || device.name().to_owned();
        if label.pool != newest.pool {
            let (pool, other_pool) = (label.pool, newest.pool);
            let other = self.name.to_string();
            return Err(PoolError::Foreign { device: name(), pool, other, other_pool });
        }
        if label.generation > newest.generation || !newest.descends_from(label) {
            let others = self.present().map(|member| member.device.name().to_owned()).collect();
            let split = SplitMirror::new((newest, others), (label, vec![name()]));
            return Err(PoolError::Split(Box::new(split)));
        }
        if !label.is_same_pool(newest) {
            return Err(PoolError::Shape { device: name(), other: self.name.to_string() });
        }
        match self.slots.all().get(usize::from(label.slot)) {
            Some(MemberSlot::Missing) => Ok(()),
            Some(MemberSlot::Taken(member)) => Err(PoolError::Cloned {
                slot: label.slot,
                device: member.device.name().to_owned(),
                generation: newest.generation,
                other: name(),
                other_generation: label.generation,
            }),
            Some(MemberSlot::Vacant) | None => Err(PoolError::NoSuchMember { slot: label.slot }),
        }
    }
}

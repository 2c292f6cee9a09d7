//! Adds and removes members while the mirror is in use.
//!
//! State after a power cut while a member is added, in the order of the steps: 1. The new device is
//! prepared, and gets a label of the current generation with the new slot. The labels of the other
//! members do not have this slot: the mirror opens without the device, or ignores it. 2. The labels
//! of the current members have the slot, in a new generation. Once the first of these labels is
//! written, the mirror opens with the device, which is stale, or without it.
//!
//! While a member is removed:
//! 1. If it is current, it is left out: the labels of the other members have a new generation.
//! 2. The labels of the other members do not have its slot, in a new generation. Once the first of
//!    these labels is written, the mirror ignores the device, and opens without it.
//! 3. Its label is cleared.

use super::Mirror;
use super::bounded::run_one;
use super::member::MirrorMember;
use super::slots::MemberSlot;
use crate::PoolError;
use crate::format::{MEMBERS_MAX, MEMBERS_MIN};
use lunar_block::BlockDevice;
use std::sync::Arc;

impl Mirror {
    /// Adds a member. Returns its slot; the copy to it runs in a task.
    pub(super) async fn add(
        self: Arc<Self>,
        device: Arc<dyn BlockDevice>,
    ) -> Result<u16, PoolError> {
        let mut former = self.reshaping.lock().await;
        let next_free_slot = self.roster.read().await.label.next_free_slot();
        let Some(slot) = next_free_slot else {
            return Err(PoolError::MemberCount(usize::from(MEMBERS_MAX) + 1));
        };
        let new = self.new_member(slot, device, &mut former).await?;
        let label = self.recorded().await?.label.with_slot(slot).at(slot);
        if let Err(error) = self.label_new(&new, label).await {
            former.add(new);
            return Err(error.into());
        }
        let mut roster = self.recorded().await?;
        roster.label = roster.label.with_slot(slot);
        self.slots.set(slot, MemberSlot::Taken(Arc::clone(&new)));
        let current = self.current();
        let recorded = self.set_current(&mut roster, current, false).await;
        drop(roster);
        self.recover_stale();
        recorded?;
        tracing::info!("{}: {} is member {slot} now", self.name, new.device.name());
        Ok(slot)
    }

    /// Removes a member for good.
    pub(super) async fn remove(self: Arc<Self>, slot: u16) -> Result<(), PoolError> {
        let mut former = self.reshaping.lock().await;
        let old = match self.slots.all().get(usize::from(slot)) {
            Some(MemberSlot::Taken(member)) => Some(Arc::clone(member)),
            Some(MemberSlot::Missing) => None,
            Some(MemberSlot::Vacant) | None => return Err(PoolError::NoSuchMember { slot }),
        };
        if self.slots.members() <= usize::from(MEMBERS_MIN) {
            return Err(PoolError::TooFewMembers);
        }
        self.check_writable()?;
        if let Some(old) = &old {
            self.leave_out_for_good(old, "it is removed").await?;
        }
        let mut roster = match self.recorded().await {
            Ok(roster) => roster,
            Err(error) => {
                old.inspect(|old| _ = old.retired.send_replace(false));
                return Err(error.into());
            }
        };
        roster.label = roster.label.without_slot(slot);
        self.slots.set(slot, MemberSlot::Vacant);
        let current = self.current();
        let recorded = self.set_current(&mut roster, current, false).await;
        drop(roster);
        self.recover_stale();
        recorded?;
        tracing::info!("{}: member {slot} is removed", self.name);
        if let Some(old) = old {
            self.clear_label(&old).await;
            former.add(old);
        }
        Ok(())
    }

    /// Clears the label of a removed device, so that other pools accept it. Its slot is gone in
    /// any case.
    async fn clear_label(&self, old: &Arc<MirrorMember>) {
        let name = old.device.name();
        if old.has_open_changes() {
            let why = "earlier writes have not ended";
            tracing::warn!("{}: the label of {name} is not cleared: {why}", self.name);
            return;
        }
        let cloned = Arc::clone(old);
        let clear = old.tracked(async move { cloned.device.clear_labels().await });
        if let Err(failure) = run_one(self.options.member_wait, old, clear).await {
            tracing::warn!("{}: the label of {name} is not cleared: {failure}", self.name);
        }
    }
}
